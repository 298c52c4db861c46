"""Hosts meet: who is taken, who is refused, and what both sides are told."""

import socket
import threading
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxfold.runtime.api import HostError
from jaxfold.runtime.hosts.facts import BLOCK_BYTES
from jaxfold.runtime.hosts.facts import contents
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.hosts.link import Link
from jaxfold.runtime.hosts.meeting import gather
from jaxfold.runtime.hosts.meeting import join
from jaxfold.runtime.hosts.seat import Seat

FACTS = {"--num-hosts": "2", "the checkpoint": "abc", "--parallel": "8"}


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def seat(host_id: int, **changes: Any) -> Seat:
    return replace(Seat("127.0.0.1", 0, 2, host_id, b"a secret of the hosts", 20.0), **changes)


def port() -> int:
    """A free one, with a free one after it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            found = int(first.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", found + 1)).close()
            except OSError:
                continue
            return found


def beside(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a call in a thread; what it gave, or the HostError that it raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except HostError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_hosts_that_are_alike_meet_in_order_of_their_numbers() -> None:
    place, facts = port(), FACTS | {"--num-hosts": "3"}
    calls = [
        beside(lambda: gather(seat(0, port=place, count=3), facts, quiet)),
        beside(lambda: join(seat(2, port=place, count=3), facts, quiet)),
        beside(lambda: join(seat(1, port=place, count=3), facts, quiet)),
    ]
    for thread, _ in calls:
        thread.join()
    led, second, first = (found[0] for _, found in calls)
    assert [link.host_id for link in led] == [1, 2]
    led[1].send(Message(Kind.REBUILD))
    assert second.receive().kind is Kind.REBUILD
    for link in (first, second, *led):
        link.close()


@pytest.mark.parametrize(
    ("wrong", "facts", "reason"),
    [
        (seat(1), FACTS | {"--num-hosts": "3"}, "--num-hosts is 3 there and 2 on host 0"),
        (seat(1), FACTS | {"the checkpoint": "xyz"}, "the checkpoint is xyz there and abc on host 0"),
        (seat(1), FACTS | {"--parallel": "4", "new": "1"}, "--parallel is 4 there and 8 on host 0; new is 1 there"),
        (seat(5), FACTS, "--host-id 5 is none of 2 hosts"),
        (seat(1, secret=b"another secret, not that one"), FACTS, "does not have the secret of this host"),
    ],
    ids=["count", "checkpoint", "options", "number", "secret"],
)
def test_who_is_not_alike_is_told_why_and_host_0_waits_for_the_right_one(
    wrong: Seat, facts: Mapping[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = port()
    thread, led = beside(lambda: gather(seat(0, port=place), FACTS, quiet))
    with pytest.raises(HostError, match=reason):
        join(replace(wrong, port=place), facts, quiet)
    taken = join(seat(1, port=place), FACTS, quiet)
    thread.join()
    assert [link.host_id for link in led[0]] == [1]
    assert "refused" in caplog.text and "secret of the hosts" not in caplog.text
    taken.close()
    led[0][0].close()


def test_a_number_is_taken_once_and_freed_by_who_goes_away() -> None:
    place = port()
    facts = FACTS | {"--num-hosts": "3"}
    thread, led = beside(lambda: gather(seat(0, port=place, count=3), facts, quiet))
    first, got_first = beside(lambda: join(seat(1, port=place, count=3), facts, quiet))
    first.join(0.3)
    second, got_second = beside(lambda: join(seat(1, port=place, count=3), facts, quiet))
    second.join(10)
    refused = (got_first or got_second)[0]
    assert isinstance(refused, HostError) and "--host-id 1 already" in str(refused)
    third, got_third = beside(lambda: join(seat(2, port=place, count=3), facts, quiet))
    for one in (first, third, thread):
        one.join()
    assert [link.host_id for link in led[0]] == [1, 2]
    for link in (*led[0], *got_third, *(x for x in (*got_first, *got_second) if isinstance(x, Link))):
        link.close()


def test_who_does_not_come_is_named() -> None:
    place = port()
    with pytest.raises(HostError, match=f"hosts 1, 2 did not come to 127.0.0.1:{place} within 0.2 s"):
        gather(seat(0, port=place, count=3, join_s=0.2), FACTS, quiet)


def test_an_address_where_nobody_answers_is_named() -> None:
    place = port()
    with pytest.raises(HostError, match=f"host 0 cannot be reached at 127.0.0.1:{place} \\(connection refused"):
        join(seat(1, port=place, join_s=0.2), FACTS, quiet)


@pytest.mark.parametrize("offset", [0, 1], ids=["ours", "JAX's"])
def test_a_port_that_is_in_use_is_named(offset: int) -> None:
    place = port()
    expected = f"cannot listen on 127.0.0.1 port {place + offset}, .*: Address"
    with socket.create_server(("127.0.0.1", place + offset)), pytest.raises(HostError, match=expected):
        gather(seat(0, port=place), FACTS, quiet)


def test_the_same_contents_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / "model.safetensors").write_bytes(bytes(1000))
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").write_bytes(bytes(999) + b"\1")
    assert contents(tmp_path / "one") != contents(tmp_path / "other")


def test_a_large_file_differs_where_a_matrix_of_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxfold.runtime.hosts.facts.WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr("jaxfold.runtime.hosts.facts.BLOCKS", 16)
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(64 * BLOCK_BYTES))
    before = contents(path)
    path.write_bytes(bytes(32 * BLOCK_BYTES) + bytes([1]) * 8 * BLOCK_BYTES + bytes(24 * BLOCK_BYTES))
    assert contents(path) != before


def test_all_pieces_of_a_split_file_count(tmp_path: Path) -> None:
    for piece in (1, 2):
        (tmp_path / f"model-0000{piece}-of-00002.gguf").write_bytes(bytes([piece]))
    first = tmp_path / "model-00001-of-00002.gguf"
    before = contents(first)
    (tmp_path / "model-00002-of-00002.gguf").write_bytes(b"x")
    assert contents(first) != before
