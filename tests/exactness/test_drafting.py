"""Drafts change no token: whatever is guessed, in whatever company, a reply is the one drawn token by token."""

import random
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import token_sha
from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.lane import LaneDrafts
from jaxfold.runtime.drafting.planner import Planner
from jaxfold.runtime.drafting.replay import ReplayProposer
from jaxfold.runtime.engine import LocalEngine
from jaxfold.runtime.lanes import Lane
from tests.exactness.test_engine_exact import SAMPLINGS
from tests.exactness.test_engine_exact import mixed
from tests.exactness.test_engine_exact import prompt
from tests.exactness.test_engine_exact import wait_idle
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import FreeWindows
from tests.tiny_engines import tiny_engine


class Oracle:
    """Proposes the reply that is to come, with wrong tokens strewn in; `noise` is how likely each is wrong."""

    name = "oracle"

    def __init__(self, reply: Sequence[int], noise: float, seed: int) -> None:
        self._reply = tuple(reply)
        self._noise = noise
        self._random = random.Random(seed)
        self._done = 0

    def absorb(self, tokens: Sequence[int]) -> None:
        self._done += len(tokens)

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        first = self._done + ahead
        known = self._reply[first : first + self._random.randint(0, max(limit, 0))]
        tokens = tuple(self._random.randrange(256) if self._random.random() < self._noise else t for t in known)
        return Proposal(self.name, tokens, 0.9) if tokens else None


class Knowing(Planner):
    """A planner whose replies are drafted by oracles, and for which a wide step costs no more than a narrow one."""

    def __init__(self, engine: LocalEngine) -> None:
        table = engine.core.device.programs.table
        super().__init__(table, FreeWindows())
        self.noise = 0.15
        self._replies: dict[tuple[int, ...], list[int]] = {}

    def learn(self, ask: Ask, reply: list[int]) -> None:
        self._replies[ask.prompt] = reply

    def open(self, lane: Lane) -> LaneDrafts | None:
        job = lane.job
        known = self._replies.get(job.request.prompt_ids, [])
        if not job.request.draft:
            return None
        return LaneDrafts((ReplayProposer(job.sent), Oracle(known, self.noise, len(known))))


@pytest.fixture(scope="session")
def drafted(family: str, programs_dir: Path) -> Iterator[Client]:
    """The family's engine as it is served, drafting as often as it can."""
    engine = tiny_engine(family, programs_dir)
    engine.core.planner = Knowing(engine)
    yield Client(engine)
    engine.close()


def planner(client: Client) -> Knowing:
    found = client.engine.core.planner
    assert isinstance(found, Knowing)
    return found


def expect(asks: Sequence[Ask], drafted: Client, fresh: Client) -> list[list[int]]:
    """The replies of plain decoding; from here on the oracles know them."""
    replies = []
    for ask in asks:
        replies.append(fresh.run(ask).ids)
        planner(drafted).learn(ask, replies[-1])
    return replies


def test_drafted_equals_undrafted(drafted: Client, fresh: Client) -> None:
    asks = [replace(ask, tokens=40) for ask in mixed(7, base=700)]
    expected = expect(asks, drafted, fresh)
    before = drafted.engine.snapshot()
    for ask, ids in zip(asks, expected, strict=True):
        reply = drafted.run(ask)
        stats = reply.stats()
        assert reply.ids == ids, ask.sampling
        assert 0 < stats.accepted < stats.drafted, "the test shows nothing"
        assert stats.rounds == stats.completion_tokens - stats.accepted
        assert stats.drafts == {"oracle": (stats.drafted, stats.accepted)}
        assert stats.token_sha == token_sha(ids)
    together = drafted.together(asks)
    assert [reply.ids for reply in together] == expected
    assert sum(reply.stats().accepted for reply in together) > 0
    undrafted = drafted.together([replace(ask, draft=False) for ask in asks])
    assert [reply.ids for reply in undrafted] == expected
    assert not any(reply.stats().drafted for reply in undrafted)
    after = drafted.engine.snapshot()
    assert after.accepted_total - before.accepted_total > sum(reply.stats().accepted for reply in together)
    assert after.drafts["oracle"][0] <= after.drafted_total
    assert after.compiles_after_ready == before.compiles_after_ready


@pytest.mark.parametrize("sampling", SAMPLINGS[::2], ids=str)
def test_pages_of_a_drafted_reply_serve_the_next_turn(drafted: Client, fresh: Client, sampling: SamplingParams) -> None:
    """Rejected drafts were written into these pages too, and none of that may be left in what is reused."""
    first = Ask(prompt(800, 70), 61, sampling)
    (ids,) = expect([first], drafted, fresh)
    assert drafted.run(first).ids == ids
    turn = Ask((*first.prompt, *ids, *prompt(801, 20)), 30, sampling)
    (follow,) = expect([turn], drafted, fresh)
    reply = drafted.run(turn)
    assert reply.ids == follow
    assert reply.stats().cached_tokens == (70 + 60) // 16 * 16


def test_an_end_inside_a_window_drops_what_follows(drafted: Client, fresh: Client) -> None:
    planner(drafted).noise = 0.0
    try:
        asks = mixed(7, base=900)
        expected = expect(asks, drafted, fresh)
        for ask, ids in zip(asks, expected, strict=True):
            for at in (1, 2, 5, 9):
                seen: list[int] = []
                stopping = replace(ask, stop_ids=frozenset([ids[at]]))
                reply = drafted.run(stopping)
                end = ids.index(ids[at]) + 1
                assert reply.ids == ids[:end]
                assert isinstance(reply.end, Finished) and reply.end.reason == "stop"
                assert (reply.stats().completion_tokens, reply.stats().token_sha) == (end, token_sha(ids[:end]))
                assert reply.stats().accepted <= end

                def check(token: int, seen: list[int] = seen, last: int = at) -> bool:
                    seen.append(token)
                    return len(seen) > last

                checked = drafted.start(ask, stop_check=check)
                checked.stats()
                assert checked.ids == seen == ids[: at + 1]
    finally:
        planner(drafted).noise = 0.15


def test_replays_are_drafted_and_exact(drafted: Client, fresh: Client) -> None:
    back = [Ask(prompt(1000 + i, 60), 120, SAMPLINGS[i], background=True) for i in range(3)]
    front = [Ask(prompt(1010 + i, 20), 8) for i in range(3)]
    expected = expect([*back, *front], drafted, fresh)
    slow = [drafted.start(ask) for ask in back]
    while min(len(reply.ids) for reply in slow) < 10:
        time.sleep(0.001)
    quick = drafted.together(front)
    assert [reply.ids for reply in quick] == expected[3:]
    assert sum(reply.stats().preemptions for reply in slow) > 0
    assert [reply.ids for reply in slow] == expected[:3]
    replayed = [reply.stats().drafts["replay"] for reply in slow if "replay" in reply.stats().drafts]
    assert replayed
    # What is repeated was drawn before: every one of these drafts is right.
    assert all(drafted == accepted for drafted, accepted in replayed)


def test_drafts_give_way_when_pages_run_out(family: str, programs_dir: Path, fresh: Client) -> None:
    engine = tiny_engine(family, programs_dir, short=True)
    try:
        engine.core.planner = Knowing(engine)
        small = Client(engine)
        asks = [Ask(prompt(1100 + i, 150), 100, SAMPLINGS[i]) for i in range(4)]
        expected = expect(asks, small, fresh)
        replies = small.together(asks)
        assert [reply.ids for reply in replies] == expected
        assert sum(reply.stats().accepted for reply in replies) > 0
        wait_idle(small)
    finally:
        engine.close()


def test_the_plain_loop_drafts_too(family: str, programs_dir: Path, fresh: Client) -> None:
    engine = tiny_engine(family, programs_dir, overlap=False)
    try:
        engine.core.planner = Knowing(engine)
        plain = Client(engine)
        asks = mixed(5, base=1200)
        expected = expect(asks, plain, fresh)
        replies = plain.together(asks)
        assert [reply.ids for reply in replies] == expected
        assert sum(reply.stats().accepted for reply in replies) > 0
    finally:
        engine.close()


# Other widths than the default are programs of their own, so two families must do.
WIDTHS = {"llama": 1, "qwen2": 7, "qwen3": 7, "gemma3": 13}


def test_windows_of_any_width_give_the_same_tokens(family: str, programs_dir: Path, fresh: Client) -> None:
    width = WIDTHS[family]
    engine = tiny_engine(family, programs_dir, draft_tokens=width)
    try:
        engine.core.planner = Knowing(engine)
        other = Client(engine)
        asks = mixed(5, base=1300)
        expected = expect(asks, other, fresh)
        for replies in ([other.run(ask) for ask in asks], other.together(asks)):
            assert [reply.ids for reply in replies] == expected
            assert sum(reply.stats().accepted for reply in replies) > 0
        assert engine.core.device.programs.table.windows[0].columns == width + 1
        assert engine.snapshot().compiles_after_ready == 0
    finally:
        engine.close()


# Few of everything, so that plain replies are shared between examples.
REQUESTS = st.fixed_dictionaries(
    {
        "number": st.integers(0, 5),
        "sampling": st.integers(0, len(SAMPLINGS) - 1),
        "draft": st.booleans(),
        "background": st.booleans(),
        "cancel": st.sampled_from([None, None, None, 1, 6]),
        "noise": st.sampled_from([0.0, 0.15, 0.5]),
    }
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(mix=st.lists(REQUESTS, min_size=1, max_size=6))
def test_any_mix_of_requests_gives_the_plain_replies(
    drafted: Client, fresh: Client, plain_replies: dict[Ask, list[int]], mix: list[dict[str, int]]
) -> None:
    planner(drafted).noise = mix[0]["noise"]
    started = []
    for i, chosen in enumerate(mix):
        number, sampling = chosen["number"], chosen["sampling"]
        # Prompts tell the oracles apart, so each sampling has its own.
        ask = Ask(prompt(2000 + 10 * number + sampling, 9 + 37 * number), 30, SAMPLINGS[sampling])
        if ask not in plain_replies:
            plain_replies[ask] = fresh.run(ask).ids
        planner(drafted).learn(ask, plain_replies[ask])
        asked = replace(ask, draft=bool(chosen["draft"]), background=bool(chosen["background"]))
        started.append((f"mix{i}", drafted.start(asked, request_id=f"mix{i}"), plain_replies[ask], chosen["cancel"]))
    for name, reply, ids, cancel in started:
        if cancel is not None:
            while len(reply.ids) < cancel and not reply.done.is_set():
                time.sleep(0.001)
            drafted.engine.cancel(name)
        reply.stats()
        assert isinstance(reply.end, Finished)
        if reply.end.reason == "cancelled":
            assert cancel is not None and reply.ids == ids[: len(reply.ids)]
        else:
            assert reply.ids == ids
    wait_idle(drafted)


@pytest.fixture(scope="session")
def plain_replies(family: str) -> dict[Ask, list[int]]:
    """What plain decoding has answered so far, by request."""
    return {}


@pytest.fixture(autouse=True)
def books_balance(drafted: Client) -> Iterator[None]:
    yield
    wait_idle(drafted)
    assert drafted.engine.healthy
