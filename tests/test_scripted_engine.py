"""The scripted engine keeps the engine's contract, or tests on it would prove nothing."""

import itertools
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.api import default_seed
from jaxfold.runtime.api import token_sha
from tests.scripted_engine import Script
from tests.scripted_engine import ScriptedEngine

ENGINES: list[ScriptedEngine] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while ENGINES:
        ENGINES.pop().close()


def engine(script: Script = (10, 11, 12), **options: Any) -> ScriptedEngine:
    made = ScriptedEngine(script, **options)
    ENGINES.append(made)
    checked: Engine = made
    assert checked.info.context_length == made.context_length
    return made


def submit(made: ScriptedEngine, name: str = "r", **fields: Any) -> "queue.Queue[EngineEvent]":
    events: queue.Queue[EngineEvent] = queue.Queue()
    fields = {"prompt_ids": (1, 2), "max_tokens": 100, **fields}
    made.submit(EngineRequest(request_id=name, **fields), events.put)
    return events


def read(events: "queue.Queue[EngineEvent]") -> tuple[list[tuple[int, ...]], Finished | Failed]:
    batches: list[tuple[int, ...]] = []
    while isinstance(event := events.get(timeout=10), Tokens):
        batches.append(event.ids)
    assert events.empty()
    return batches, event


def test_a_script_is_replayed() -> None:
    made = engine(cached_tokens=0)
    batches, last = read(submit(made))
    assert batches == [(10,), (11,), (12,)]
    assert isinstance(last, Finished)
    assert last.reason == "stop"
    stats = last.stats
    assert (stats.prompt_tokens, stats.completion_tokens, stats.token_sha) == (2, 3, token_sha([10, 11, 12]))
    assert stats.seed == default_seed((1, 2))
    assert [request.request_id for request in made.requests] == ["r"]


def test_ways_to_end() -> None:
    made = engine(lambda _: itertools.count(), tokens_per_event=4)
    for fields, ids, reason in (
        ({"max_tokens": 6}, range(6), "length"),
        ({"stop_ids": frozenset({5})}, range(6), "stop"),
        ({"stop_check": lambda token_id: token_id == 2}, range(3), "stop"),
    ):
        batches, last = read(submit(made, **fields))
        assert [i for batch in batches for i in batch] == list(ids)
        assert isinstance(last, Finished)
        assert last.reason == reason
    assert read(submit(made, max_tokens=5, sampling=SamplingParams(seed=9)))[0] == [(0, 1, 2, 3), (4,)]


def test_cancelling() -> None:
    made = engine(hang=True, lanes=1)
    running, waiting = submit(made, "a"), submit(made, "b")
    assert [running.get(timeout=10) for _ in range(3)] == [Tokens((10,)), Tokens((11,)), Tokens((12,))]
    made.cancel("b")
    batches, last = read(waiting)
    assert (batches, isinstance(last, Finished) and last.reason) == ([], "cancelled")
    made.cancel("unknown")
    made.cancel("a")
    assert isinstance(read(running)[1], Finished)
    assert made.wait_idle()
    assert made.snapshot().cancelled_total == 2


def test_failures_and_refusals() -> None:
    made = engine(fail_after=2)
    batches, last = read(submit(made))
    assert (batches, type(last)) == ([(10,), (11,)], Failed)
    made.fail_after = 0
    assert read(submit(made))[0] == []
    made.fail_after = None
    made.refuse = QueueFullError("no")
    with pytest.raises(QueueFullError):
        submit(made)
    made.refuse = None
    with pytest.raises(CapacityError):
        submit(made, max_tokens=1 << 16)
    made.ready = False
    with pytest.raises(NotReadyError):
        submit(made)
    assert not made.snapshot().ready


def test_the_queue_is_bounded() -> None:
    made = engine(hang=True, lanes=1, max_queue=1)
    first = submit(made, "a")
    first.get(timeout=10)
    submit(made, "b")
    with pytest.raises(QueueFullError):
        submit(made, "c")


def test_draining_and_closing() -> None:
    made = engine(hang=True)
    events = submit(made)
    made.drain()
    with pytest.raises(NotReadyError):
        submit(made, "late")
    made.close()
    last = read(events)[1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert not made.snapshot().healthy


def test_totals() -> None:
    made = engine(cached_tokens=1)
    for _ in range(2):
        read(submit(made))
    assert made.wait_idle()
    totals = made.snapshot()
    assert (totals.requests_total, totals.prompt_tokens_total, totals.completion_tokens_total) == (2, 4, 6)
    assert (totals.cached_tokens_total, totals.requests_running, totals.compiles_after_ready) == (2, 0, 0)
