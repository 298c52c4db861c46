"""A bare socket to a server, for what an HTTP library would not send."""

import socket

from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server


class Raw:
    """A bare socket to the server."""

    def __init__(self, server: Server, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", server.port))

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_all(self) -> bytes:
        """Everything up to the end of the connection."""
        parts = []
        while part := self.socket.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)

    def read_until(self, mark: bytes) -> bytes:
        data = b""
        while mark not in data:
            part = self.socket.recv(1 << 16)
            assert part, data
            data += part
        return data


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()
