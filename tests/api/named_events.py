"""A reader of streams whose events have names: `event: <name>`, `data: <JSON with that type>`, an empty line."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server


class NamedStream:
    """One open stream; it ends where the response ends."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        payload = json.dumps({"stream": True, **body})
        self.connection.request("POST", path, payload, {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON of each event."""
        assert self.response.status == 200, self.response.read()
        assert self.response.getheader("Content-Type") == "text/event-stream"
        assert self.response.getheader("Cache-Control") == "no-cache"
        while line := self.response.readline():
            assert line.startswith(b"event: ") and line.endswith(b"\n"), line
            name = line.removeprefix(b"event: ").removesuffix(b"\n").decode("ascii")
            data = self.response.readline()
            assert data.startswith(b"data: ") and data.isascii(), data
            assert self.response.readline() == b"\n"
            value = json.loads(data.removeprefix(b"data: "))
            assert value["type"] == name
            yield value
        self.close()

    def close(self) -> None:
        """Leave, maybe in the middle."""
        self.response.close()
        self.connection.close()


def named_events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole stream."""
    return list(NamedStream(server.port, path, body).events())


def parse(data: bytes) -> list[dict[str, Any]]:
    """Events that were written without a server."""
    values = []
    for part in data.decode("ascii").removesuffix("\n\n").split("\n\n"):
        name, line = part.split("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        values.append(value)
    return values
