"""One connection between host 0 and another host, on which both have proved that they know the secret.

Each side sends a random number and then a digest over both numbers, keyed with the secret. From there on every message
carries a digest of its own, keyed for this connection and direction, over its number and its contents: none can be
made up, changed, repeated or left out. Nothing is encrypted.
"""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
from typing import Final
from typing import Self

from jaxfold.runtime.hosts.frames import FrameError
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.frames import decode
from jaxfold.runtime.hosts.frames import encode

MAGIC: Final = b"jaxfold hosts 1\n"
NONCE_BYTES: Final = 32
TAG_BYTES: Final = 32
MAX_PAYLOAD: Final = 256 << 20
HELLO_S: Final = 5.0
"""Time for the few bytes with which a connection begins."""
_SIZE: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_ID: Final = struct.Struct("<I")
_YES, _NO = b"\x01", b"\x00"


class LinkError(Exception):
    """The connection is of no use: closed, silent, or not who it should be. The message is part of a sentence."""


class SecretError(LinkError):
    """The two sides do not know the same secret."""


class Link:
    """Sends and receives messages. Any thread may send; one at a time receives."""

    def __init__(self, sock: socket.socket, send_key: bytes, receive_key: bytes, host_id: int) -> None:
        sock.settimeout(None)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host_id = host_id
        self._sock = sock
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0
        self._sending = threading.Lock()

    @classmethod
    def accept(cls, sock: socket.socket, secret: bytes) -> Self:
        """Host 0's side. `host_id` of the link is the number that the other host says it has.

        Raises:
            SecretError: the other side does not know the secret.
            LinkError: it does not speak this protocol, or not in time.
        """
        sock.settimeout(HELLO_S)
        try:
            mine = os.urandom(NONCE_BYTES)
            sock.sendall(MAGIC + mine)
            head = _exactly(sock, len(MAGIC) + _ID.size + NONCE_BYTES + TAG_BYTES)
            if not head.startswith(MAGIC):
                raise LinkError("speaks another protocol")
            hello, tag = head[len(MAGIC) : -TAG_BYTES], head[-TAG_BYTES:]
            if not hmac.compare_digest(tag, _digest(secret, b"follower", mine + hello)):
                sock.sendall(_NO + bytes(TAG_BYTES))
                raise SecretError("does not have this secret")
            sock.sendall(_YES + _digest(secret, b"leader", mine + hello))
        except OSError as error:
            raise LinkError(_reason(error)) from None
        down, up = (_digest(secret, way, mine + hello) for way in (b"down", b"up"))
        return cls(sock, down, up, _ID.unpack(hello[: _ID.size])[0])

    @classmethod
    def offer(cls, sock: socket.socket, secret: bytes, host_id: int) -> Self:
        """A follower's side.

        Raises:
            SecretError: host 0 does not know the secret, or says that this one is wrong.
            LinkError: the other side does not speak this protocol, or not in time.
        """
        sock.settimeout(HELLO_S)
        try:
            head = _exactly(sock, len(MAGIC) + NONCE_BYTES)
            if not head.startswith(MAGIC):
                raise LinkError("speaks another protocol")
            theirs, hello = head[len(MAGIC) :], _ID.pack(host_id) + os.urandom(NONCE_BYTES)
            sock.sendall(MAGIC + hello + _digest(secret, b"follower", theirs + hello))
            answer = _exactly(sock, 1 + TAG_BYTES)
        except OSError as error:
            raise LinkError(_reason(error)) from None
        if answer[:1] != _YES or not hmac.compare_digest(answer[1:], _digest(secret, b"leader", theirs + hello)):
            raise SecretError("does not have this secret")
        down, up = (_digest(secret, way, theirs + hello) for way in (b"down", b"up"))
        return cls(sock, up, down, host_id)

    def send(self, message: Message, wait: bool = True) -> bool:
        """Send one message. Without `wait` nothing is sent, and False returned, while another thread is sending.

        Raises:
            LinkError: the connection is closed.
        """
        if not self._sending.acquire(blocking=wait):
            return False
        try:
            payload = encode(message)
            tag = _digest(self._send_key, _NUMBER.pack(self._sent), payload)
            self._sent += 1
            self._sock.sendall(_SIZE.pack(len(payload)) + tag + payload)
            return True
        except OSError as error:
            raise LinkError(_reason(error)) from None
        finally:
            self._sending.release()

    @property
    def gone(self) -> bool:
        """Whether the other side has closed the connection, as far as can be seen without waiting."""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self, timeout: float | None = None) -> Message:
        """The next message; waits for it, `timeout` seconds for each of its pieces. Only until others send too.

        Raises:
            LinkError: the connection is closed, or what came is not from the other side.
        """
        try:
            self._sock.settimeout(timeout)
            head = _exactly(self._sock, _SIZE.size + TAG_BYTES)
            size = _SIZE.unpack(head[: _SIZE.size])[0]
            if size > MAX_PAYLOAD:
                raise LinkError("sent a message that is too large")
            payload = _exactly(self._sock, size)
            self._sock.settimeout(None)
        except OSError as error:
            raise LinkError(_reason(error)) from None
        tag = _digest(self._receive_key, _NUMBER.pack(self._received), payload)
        self._received += 1
        if not hmac.compare_digest(tag, head[_SIZE.size :]):
            raise LinkError("sent a message with a wrong digest")
        try:
            return decode(payload)
        except FrameError as error:
            raise LinkError(f"sent something that is no message ({error})") from None

    def close(self) -> None:
        """End the connection; whoever receives on it gets a LinkError."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _digest(key: bytes, label: bytes, content: bytes) -> bytes:
    return hmac.digest(key, _SIZE.pack(len(label)) + label + content, hashlib.sha256)


def _exactly(sock: socket.socket, count: int) -> bytes:
    """Raises ConnectionError where the other side has closed."""
    found = bytearray()
    while len(found) < count:
        part = sock.recv(min(count - len(found), 1 << 20))
        if not part:
            raise ConnectionError("closed the connection")
        found += part
    return bytes(found)


def _reason(error: OSError) -> str:
    """What the other side did, as the end of a sentence that begins with it."""
    if isinstance(error, ConnectionError):
        return "closed the connection"
    return "does not answer" if isinstance(error, TimeoutError) else f"cannot be reached ({error.strerror or error})"
