"""The engine's door: what it refuses, how requests end, and what happens when a step fails."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.engine import LocalEngine
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import LANES
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import Reply
from tests.tiny_engines import tiny_engine

PROMPT = tuple(range(3, 23))
LONG = Ask(PROMPT, 400)


@pytest.fixture(params=[True, False], ids=["overlapped", "plain"])
def client(request: pytest.FixtureRequest, programs_dir: Path) -> Iterator[Client]:
    engine = tiny_engine("llama", programs_dir, overlap=request.param, max_queue=4)
    yield Client(engine)
    engine.close()


def until(condition: Any) -> None:
    for _ in range(4000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def counting(reply: Reply, count: int) -> None:
    until(lambda: len(reply.ids) >= count)


def test_a_running_reply_is_cancelled(client: Client) -> None:
    reply = client.start(LONG, request_id="one")
    counting(reply, 5)
    client.engine.cancel("one")
    assert reply.done.wait(30)
    assert isinstance(reply.end, Finished)
    assert reply.end.reason == "cancelled"
    assert 5 <= len(reply.ids) < 400
    assert reply.end.stats.completion_tokens == len(reply.ids)
    until(lambda: client.engine.idle)
    assert client.engine.snapshot().cancelled_total == 1
    assert client.run(Ask(PROMPT, 5)).ids == reply.ids[:5]


def test_a_waiting_request_is_cancelled_and_unknown_ids_are_ignored(client: Client) -> None:
    running = [client.start(LONG) for _ in range(LANES)]
    for reply in running:
        counting(reply, 1)
    waiting = client.start(Ask(PROMPT, 5), request_id="waits")
    client.engine.cancel("nobody")
    client.engine.cancel("waits")
    assert waiting.done.wait(30)
    assert isinstance(waiting.end, Finished)
    assert (waiting.end.reason, waiting.ids) == ("cancelled", [])
    for number in range(1, LANES + 1):
        client.engine.cancel(f"r{number}")
    for reply in running:
        assert reply.done.wait(30)


def test_the_queue_is_bounded(client: Client) -> None:
    replies = [client.start(LONG) for _ in range(LANES)]
    until(lambda: client.engine.snapshot().requests_running == LANES)
    replies += [client.start(LONG) for _ in range(4)]
    with pytest.raises(QueueFullError, match="4 of at most 4 requests are waiting"):
        client.start(LONG)
    assert client.engine.snapshot().requests_waiting == 4
    for number in range(1, len(replies) + 1):
        client.engine.cancel(f"r{number}")
    for reply in replies:
        assert reply.done.wait(30)


def test_what_makes_no_sense_is_refused(client: Client) -> None:
    vocabulary = client.engine.info.vocab_size
    for prompt, tokens, sampling, sentence in [
        ((), 5, SamplingParams(), "at least one prompt token"),
        (PROMPT, 0, SamplingParams(), "one token of reply"),
        ((vocabulary,), 5, SamplingParams(), "prompt ids"),
        ((-1,), 5, SamplingParams(), "prompt ids"),
        (PROMPT, 5, SamplingParams(logit_bias=((vocabulary, 1.0),)), "logit_bias ids"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            client.start(Ask(prompt, tokens, sampling))
    with pytest.raises(CapacityError, match=f"maximum context length is {CONTEXT} tokens, but the prompt has 20"):
        client.start(Ask(PROMPT, CONTEXT))
    reply = client.start(LONG, request_id="same")
    with pytest.raises(ValueError, match="in use"):
        client.start(LONG, request_id="same")
    client.engine.cancel("same")
    assert reply.done.wait(30)
    assert client.run(Ask(PROMPT, CONTEXT - len(PROMPT))).stats().completion_tokens == CONTEXT - len(PROMPT)


def test_draining_refuses_new_requests_and_finishes_old_ones(client: Client) -> None:
    reply = client.start(Ask(PROMPT, 60))
    client.engine.drain()
    with pytest.raises(NotReadyError, match="shutting down"):
        client.start(LONG)
    assert reply.stats().completion_tokens == 60
    assert not client.engine.snapshot().ready


def test_closing_cancels_what_is_left(client: Client) -> None:
    replies = [client.start(LONG) for _ in range(LANES + 2)]
    counting(replies[0], 2)
    client.engine.close()
    for reply in replies:
        assert reply.done.wait(10)
        assert isinstance(reply.end, Finished)
        assert reply.end.reason == "cancelled"


def test_stop_check_sees_every_token_in_order(client: Client) -> None:
    seen: list[int] = []

    def check(token: int) -> bool:
        seen.append(token)
        return len(seen) == 7

    reply = client.start(LONG, stop_check=check)
    assert reply.stats().completion_tokens == 7
    assert isinstance(reply.end, Finished)
    assert reply.end.reason == "stop"
    assert seen == reply.ids


def test_a_callback_that_raises_ends_only_its_own_reply(client: Client) -> None:
    other = client.start(Ask(PROMPT, 50))

    def check(token: int) -> bool:
        raise RuntimeError("stop_check")

    broken = client.start(LONG, stop_check=check)
    assert broken.stats().completion_tokens == 1
    events: list[Any] = []
    ended = threading.Event()

    def sink(event: Any) -> None:
        events.append(event)
        if isinstance(event, Tokens):
            raise RuntimeError("sink")
        ended.set()

    client.engine.submit(EngineRequest("sink", PROMPT, 40), sink)
    assert ended.wait(30)
    assert isinstance(events[-1], Finished)
    assert other.ids == client.run(Ask(PROMPT, 50)).ids or not other.done.is_set()
    assert other.stats().completion_tokens == 50


def test_a_failed_step_fails_its_replies_and_the_next_request_works(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = client.run(Ask(PROMPT, 12)).ids
    programs = client.engine.core.device.programs
    step = programs.step
    failures = iter([True])

    def faulty(*args: Any) -> Any:
        if len(replies[0].ids) > 3 and next(failures, False):
            raise RuntimeError("injected")
        return step(*args)

    replies = [client.start(LONG), client.start(LONG)]
    monkeypatch.setattr(programs, "step", faulty)
    for reply in replies:
        assert reply.done.wait(30)
        assert reply.end == Failed("the engine failed while generating this reply")
    assert client.run(Ask(PROMPT, 12)).ids == expected
    assert client.engine.healthy
    assert client.engine.snapshot().failed_total == 2


def test_three_failed_steps_in_a_row_stop_the_engine(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*args: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(client.engine.core.device.programs, "step", faulty)
    for _ in range(3):
        reply = client.start(LONG)
        assert reply.done.wait(30)
        assert isinstance(reply.end, Failed)
    until(lambda: not client.engine.healthy)
    with pytest.raises(NotReadyError, match="has stopped"):
        client.start(LONG)
    assert not client.engine.snapshot().ready


def test_an_abandoned_engine_ends_every_request_once_and_stays_unhealthy(client: Client) -> None:
    """Its rounds may still come to an end: nothing of them is sent (`Reply.sink` would fail), nothing recovers."""
    replies = [client.start(LONG) for _ in range(LANES + 2)]
    counting(replies[0], 3)
    client.engine.abandon("a host is lost")
    assert all(reply.end == Failed("a host is lost") for reply in replies)
    assert not client.engine.healthy and not client.engine.snapshot().ready
    with pytest.raises(NotReadyError, match="has stopped"):
        client.start(LONG)
    client.engine.close()
    assert not client.engine.healthy


def test_a_step_that_fails_on_several_hosts_ends_the_engine(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*args: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(client.engine.core.device, "alone", False)
    monkeypatch.setattr(client.engine.core.device, "step", faulty)
    reply = client.start(LONG)
    assert reply.done.wait(30) and isinstance(reply.end, Failed)
    until(lambda: not client.engine.healthy)


def test_a_short_request_passes_a_long_prompt(client: Client) -> None:
    long = client.start(Ask(tuple(range(1, 251)) * 2, 4))
    short = client.start(Ask(PROMPT, 1))
    short.stats()
    long.stats()
    ends = [reply.end.stats.time_to_first_token_s for reply in (short, long) if isinstance(reply.end, Finished)]
    assert ends[0] < ends[1]


def test_snapshot_adds_up(client: Client) -> None:
    replies = client.together([Ask(PROMPT, 5 + i) for i in range(4)])
    now = client.engine.snapshot()
    assert now.requests_total == 4
    assert now.prompt_tokens_total == 4 * len(PROMPT)
    assert now.completion_tokens_total == sum(len(reply.ids) for reply in replies)
    assert now.requests_running == now.requests_waiting == now.generation_tokens_running == 0
    assert now.compiles_after_ready == 0
    assert now.pages_used == now.pages_cached <= now.pages_total == client.engine.info.total_pages
    assert isinstance(client.engine, LocalEngine)


@pytest.mark.parametrize("verb", ["open", "can_open"])
def test_a_failed_admission_answers_the_request_and_leaks_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    expected = client.run(Ask(PROMPT, 12)).ids
    running = client.start(LONG)
    counting(running, 2)
    work = getattr(client.engine.core.pages, verb)
    failures = iter([True])

    def faulty(*args: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("injected")
        return work(*args)

    monkeypatch.setattr(client.engine.core.pages, verb, faulty)
    lost = client.start(Ask(PROMPT, 5))
    for reply in (lost, running):
        assert reply.done.wait(30)
        assert isinstance(reply.end, Failed)
    assert client.run(Ask(PROMPT, 12)).ids == expected
    until(lambda: client.engine.idle)
    assert client.engine.healthy
