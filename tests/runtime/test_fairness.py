"""Fairness over time, on a fake clock: queue, chunks, decode share and yielding together, as the engine uses them."""

from dataclasses import dataclass
from dataclasses import field

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.queue import RequestQueue
from jaxfold.runtime.schedule import PASS_LIMIT
from jaxfold.runtime.schedule import DecodeShare
from jaxfold.runtime.schedule import choose_victim
from jaxfold.runtime.schedule import pick_chunk

CHUNK_S = 0.1
ROUND_S = 0.01
CHUNK = 256
AGE_LIMIT = 8


@dataclass
class Work:
    """A request: its prompt is filled in chunks, then each round gives a token."""

    arrival: int
    prompt_tokens: int = CHUNK
    reply_tokens: int = 5
    background: bool = False
    protected: bool = False
    passed: int = 0
    filled: int = 0
    written: int = 0
    came: float = 0.0
    round_times: list[float] = field(default_factory=list)
    preempted: int = 0
    ended: float | None = None

    @property
    def request_id(self) -> str:
        return f"r{self.arrival}"

    @property
    def tokens_left(self) -> int:
        return self.prompt_tokens - self.filled

    @property
    def finished(self) -> bool:
        return self.ended is not None


class House:
    """Lanes over the policy objects; `now` moves by what chunks and rounds take."""

    def __init__(self, lanes: int, share: float = 0.25) -> None:
        self.queue = RequestQueue[Work](max_requests=10_000, max_tokens=10**9, age_limit=AGE_LIMIT)
        self.share = DecodeShare(share)
        self.lanes: list[Work | None] = [None] * lanes
        self.now = 0.0

    def submit(self, work: Work) -> Work:
        work.came = self.now
        self.queue.push(work)
        return work

    def step(self) -> None:
        """Admit what can be, then one chunk or one round."""
        self._admit()
        filling = [work for work in self.lanes if work is not None and work.tokens_left > 0]
        decoding = [work for work in self.lanes if work is not None and work.tokens_left <= 0]
        if not filling:
            self.share.reset()
        if filling and not (decoding and self.share.may_round()):
            work = filling[pick_chunk(filling, self.share.whole_prompts)]
            work.filled += CHUNK
            self.now += CHUNK_S
            self.share.chunk_done(CHUNK_S)
            return
        self.now += ROUND_S
        if filling:
            self.share.spent(ROUND_S)
        for work in decoding:
            work.written += 1
            work.round_times.append(self.now)
            if work.written >= work.reply_tokens:
                work.ended = self.now
                self.lanes[self.lanes.index(work)] = None

    def _admit(self) -> None:
        while len(self.queue):
            cleared = False
            if None not in self.lanes:
                victim = choose_victim(self.lanes)
                if not self.queue.foreground_waiting or victim is None:
                    return
                work = self.lanes[victim]
                assert work is not None
                work.filled = work.written = 0
                work.preempted += 1
                self.lanes[victim] = None
                self.queue.push_front(work)
                cleared = True
            due = self.queue.due
            job = self.queue.next(foreground_only=cleared)
            assert job is not None
            job.protected = job.background and due
            self.lanes[self.lanes.index(None)] = job

    def run_until_idle(self) -> None:
        while len(self.queue) or any(work is not None for work in self.lanes):
            self.step()
            self.queue.check_integrity()


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_background_work_ends_under_a_flood_of_foreground_work(lanes: int) -> None:
    house = House(lanes)
    task = house.submit(Work(0, background=True))
    flood: list[Work] = []
    while not task.finished:
        # There is always one more user than there are lanes.
        while house.queue.foreground_waiting < 2:
            flood.append(house.submit(Work(len(flood) + 1)))
        house.step()
        assert len(flood) < 3 * AGE_LIMIT + 4 * lanes
    served_before = sum(work.finished for work in flood)
    assert served_before <= 2 * AGE_LIMIT + 2 * lanes
    # It may have given way before it was due, never after.
    assert task.protected and task.preempted <= 1


def test_a_user_takes_the_lane_of_background_work_at_once() -> None:
    house = House(1)
    task = house.submit(Work(0, background=True, reply_tokens=1000))
    for _ in range(20):
        house.step()
    assert task.written > 0
    user = house.submit(Work(1))
    came = house.now
    house.run_until_idle()
    assert user.ended is not None and task.ended is not None
    assert user.ended - came == pytest.approx(CHUNK_S + user.reply_tokens * ROUND_S)
    assert (task.preempted, task.written) == (1, 1000)


def test_replies_go_on_while_a_long_prompt_is_filled() -> None:
    house = House(2)
    reply = house.submit(Work(0, reply_tokens=60))
    for _ in range(3):
        house.step()
    house.submit(Work(1, prompt_tokens=20 * CHUNK))
    house.run_until_idle()
    gaps = [later - sooner for sooner, later in zip(reply.round_times, reply.round_times[1:], strict=False)]
    # Never more than one chunk between two tokens, and about a quarter of a chunk's time for tokens after each.
    assert max(gaps) <= CHUNK_S + ROUND_S + 1e-9
    chunks = sum(gap > CHUNK_S for gap in gaps)
    assert len(gaps) / chunks == pytest.approx(0.25 * CHUNK_S / ROUND_S, abs=0.75)


def test_a_short_prompt_starts_at_the_next_chunk_and_the_long_one_still_ends() -> None:
    house = House(4)
    long = house.submit(Work(0, prompt_tokens=40 * CHUNK, reply_tokens=1))
    house.step()
    number = 1
    while not long.finished:
        if house.queue.foreground_waiting == 0 and sum(work is not None for work in house.lanes) < 4:
            house.submit(Work(number, reply_tokens=1))
            number += 1
        house.step()
        assert number < 40 * (PASS_LIMIT + 1) + 10
    house.run_until_idle()
    assert long.ended is not None
    # Every eighth chunk at the latest is the long prompt's.
    assert long.ended <= 40 * (PASS_LIMIT + 1) * (CHUNK_S + 4 * ROUND_S)


@given(
    works=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 12), st.booleans(), st.integers(0, 5)), min_size=1, max_size=25
    ),
    lanes=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.25, 2.0]),
)
@settings(max_examples=60)
def test_everything_ends_whatever_comes(works: list[tuple[int, int, bool, int]], lanes: int, share: float) -> None:
    house = House(lanes, share)
    submitted = []
    for arrival, (chunks, tokens, background, steps) in enumerate(works):
        submitted.append(house.submit(Work(arrival, chunks * CHUNK, tokens, background)))
        for _ in range(steps):
            house.step()
    house.run_until_idle()
    assert all(work.finished and work.written == work.reply_tokens for work in submitted)
    assert not any(work.preempted for work in submitted if not work.background)
