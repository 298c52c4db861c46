"""A reader of Server-Sent Events that accepts nothing but the bytes the server promises."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server


class Stream:
    """One open stream. Every event is `data: <JSON or [DONE]>` and an empty line, and nothing else stands between."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        payload = json.dumps({"stream": True, **body})
        self.connection.request("POST", path, payload, {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.done = False

    @property
    def status(self) -> int:
        return self.response.status

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON of each event up to [DONE]; then the response must end."""
        assert self.response.status == 200, self.response.read()
        assert self.response.getheader("Content-Type") == "text/event-stream"
        assert self.response.getheader("Cache-Control") == "no-cache"
        assert self.response.getheader("X-Accel-Buffering") == "no"
        assert self.response.getheader("Content-Length") is None
        while True:
            line = self.response.readline()
            assert line.startswith(b"data: "), line
            assert line.endswith(b"\n") and b"\r" not in line, line
            assert self.response.readline() == b"\n"
            data = line.removeprefix(b"data: ").removesuffix(b"\n")
            data.decode("ascii")
            if data == b"[DONE]":
                assert self.response.read() == b""
                self.done = True
                self.close()
                return
            value = json.loads(data)
            assert isinstance(value, dict)
            yield value

    def close(self) -> None:
        """Leave, maybe in the middle."""
        self.response.close()
        self.connection.close()


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole stream."""
    return list(Stream(server.port, path, body).events())
