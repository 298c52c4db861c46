"""Connections between hosts: who may speak, and what may be said."""

import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.link import MAGIC
from jaxfold.runtime.hosts.link import NONCE_BYTES
from jaxfold.runtime.hosts.link import TAG_BYTES
from jaxfold.runtime.hosts.link import Link
from jaxfold.runtime.hosts.link import LinkError
from jaxfold.runtime.hosts.link import SecretError

SECRET = b"a secret of the hosts"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        yield one, other


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """What two calls give that wait for each other: results, or what they raised."""
    found: list[Any] = [None, None]

    def run(place: int, call: Callable[[], Any]) -> None:
        try:
            found[place] = call()
        except LinkError as error:
            found[place] = error

    thread = threading.Thread(target=run, args=(1, second))
    thread.start()
    run(0, first)
    thread.join()
    return found


def linked(ends: tuple[socket.socket, socket.socket]) -> tuple[Link, Link]:
    leader, follower = both(lambda: Link.accept(ends[0], SECRET), lambda: Link.offer(ends[1], SECRET, 3))
    assert isinstance(leader, Link) and isinstance(follower, Link)
    return leader, follower


def test_messages_go_both_ways(ends: tuple[socket.socket, socket.socket]) -> None:
    leader, follower = linked(ends)
    assert leader.host_id == 3
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    for number in range(3):
        leader.send(Message(Kind.STEP, (number,), arrays=(rows,)))
        follower.send(Message(Kind.VALUE, (number,)))
    for number in range(3):
        message = follower.receive()
        assert message.numbers == (number,) and np.array_equal(message.arrays[0], rows)
        assert leader.receive().numbers == (number,)
    assert not leader.gone
    follower.close()
    with pytest.raises(LinkError, match="closed"):
        leader.receive()


def test_another_secret_is_refused_on_both_sides(ends: tuple[socket.socket, socket.socket]) -> None:
    leader, follower = both(lambda: Link.accept(ends[0], SECRET), lambda: Link.offer(ends[1], b"another", 1))
    assert isinstance(leader, SecretError) and isinstance(follower, SecretError)


def test_a_leader_that_accepts_everybody_is_found_out(ends: tuple[socket.socket, socket.socket]) -> None:
    def pretend() -> None:
        ends[0].sendall(MAGIC + bytes(NONCE_BYTES))
        ends[0].recv(1000)
        ends[0].sendall(b"\x01" + bytes(TAG_BYTES))

    _, follower = both(pretend, lambda: Link.offer(ends[1], SECRET, 1))
    assert isinstance(follower, SecretError)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n" + bytes(200), b"", MAGIC], ids=["http", "nothing", "cut"])
def test_who_speaks_something_else_is_refused(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    ends[1].sendall(sent)
    ends[1].shutdown(socket.SHUT_WR)
    with pytest.raises(LinkError):
        Link.accept(ends[0], SECRET)


def frames_of(sock: socket.socket) -> bytes:
    sock.settimeout(5)
    return sock.recv(1 << 16)


@pytest.mark.parametrize("fault", ["changed", "repeated", "reordered", "made up", "huge"])
def test_only_what_the_other_side_sent_is_taken(ends: tuple[socket.socket, socket.socket], fault: str) -> None:
    """Somebody between the two who does not know the secret."""
    leader, follower = linked(ends)
    leader.send(Message(Kind.STEP, (1,)))
    first = frames_of(ends[1])
    leader.send(Message(Kind.STEP, (2,)))
    second = frames_of(ends[1])
    changed = bytearray(first)
    changed[-1] ^= 1
    sent = {
        "changed": bytes(changed),
        "repeated": first + first,
        "reordered": second + first,
        "made up": first[:4] + bytes(TAG_BYTES) + first[4 + TAG_BYTES :],
        "huge": b"\xff\xff\xff\xff" + bytes(TAG_BYTES),
    }[fault]
    ends[0].sendall(sent)
    with pytest.raises(LinkError, match=r"digest|too large"):
        for _ in range(2):
            follower.receive()


def test_a_message_of_ones_own_is_not_taken_back(ends: tuple[socket.socket, socket.socket]) -> None:
    leader, follower = linked(ends)
    follower.send(Message(Kind.READY))
    ends[0].sendall(frames_of(ends[0]))
    with pytest.raises(LinkError, match="digest"):
        follower.receive()
    assert leader.host_id == 3
