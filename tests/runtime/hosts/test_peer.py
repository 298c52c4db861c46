"""A host that is watched: silence, closed connections and endings."""

import queue
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.runtime.api import HostLostError
from jaxfold.runtime.hosts import peer as watching
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.link import Link
from jaxfold.runtime.hosts.peer import Peer
from jaxfold.runtime.hosts.peer import Pulse


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    one, other = socket.socketpair(socket.AF_UNIX)
    first, second = Link(one, b"a", b"b", 1), Link(other, b"b", b"a", 1)
    yield first, second
    first.close()
    second.close()


def watched(link: Link) -> tuple[Peer, "queue.Queue[str]"]:
    lost: queue.Queue[str] = queue.Queue()
    return Peer(link, lost.put), lost


def test_heartbeats_are_not_taken_for_messages(links: tuple[Link, Link]) -> None:
    peer, lost = watched(links[0])
    links[1].send(Message(Kind.BEAT))
    links[1].send(Message(Kind.READY))
    assert peer.take().kind is Kind.READY and lost.empty()


def test_a_closed_connection_is_a_loss_at_once(links: tuple[Link, Link]) -> None:
    peer, lost = watched(links[0])
    links[1].close()
    assert lost.get(timeout=5) == "host 1 is lost: it closed the connection"
    for _ in range(2):
        with pytest.raises(HostLostError, match="closed"):
            peer.take()
    peer.beat()
    assert lost.empty(), "it is told once"


def test_silence_is_a_loss(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    peer, lost = watched(links[0])
    peer.silence_s = 5.0
    now = time.monotonic()
    monkeypatch.setattr(watching.time, "monotonic", lambda: now + 4.9)
    peer.beat()
    assert lost.empty() and links[1].receive().kind is Kind.BEAT
    monkeypatch.setattr(watching.time, "monotonic", lambda: now + 5.2)
    peer.beat()
    assert lost.get(timeout=5).startswith("host 1 is lost: it has been silent for 5.")


def test_a_reason_to_end_is_passed_on(links: tuple[Link, Link]) -> None:
    _, lost = watched(links[0])
    links[1].send(Message(Kind.ENDED, text="there is no room"))
    assert lost.get(timeout=5) == "host 1 has ended: there is no room"


def test_an_end_in_order_is_no_loss(links: tuple[Link, Link]) -> None:
    peer, lost = watched(links[0])
    links[1].send(Message(Kind.ENDED))
    links[1].close()
    assert peer.take().kind is Kind.ENDED and lost.empty()


def test_the_pulse_beats_until_it_is_stopped(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BEAT_S", 0.01)
    peer, lost = watched(links[0])
    pulse = Pulse([peer])
    kinds: set[Any] = {links[1].receive(timeout=5).kind for _ in range(3)}
    pulse.stop()
    assert kinds == {Kind.BEAT} and lost.empty()
