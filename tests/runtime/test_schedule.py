"""The scheduling policy on a clock that only the tests move."""

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.schedule import PASS_LIMIT
from jaxfold.runtime.schedule import DecodeShare
from jaxfold.runtime.schedule import choose_victim
from jaxfold.runtime.schedule import pick_chunk


@dataclass
class Prompt:
    arrival: int
    tokens_left: int
    background: bool = False
    passed: int = 0


@dataclass(frozen=True)
class Running:
    arrival: int
    background: bool = True
    finished: bool = False
    protected: bool = False


def fill_all(prompts: list[Prompt], chunk: int = 1, whole_prompts: bool = False) -> list[int]:
    """Fill every prompt; returns the arrival numbers in the order of their chunks."""
    order = []
    waiting = list(prompts)
    while waiting:
        chosen = waiting[pick_chunk(waiting, whole_prompts)]
        order.append(chosen.arrival)
        chosen.tokens_left -= chunk
        waiting = [prompt for prompt in waiting if prompt.tokens_left > 0]
    return order


def test_foreground_then_fewest_tokens_then_arrival() -> None:
    prompts = [Prompt(1, 5, background=True), Prompt(2, 900), Prompt(4, 30), Prompt(3, 30)]
    assert pick_chunk(prompts) == 3
    assert [prompt.passed for prompt in prompts] == [1, 1, 1, 0]


def test_a_prompt_passed_over_eight_times_takes_the_next_chunk() -> None:
    order = fill_all([Prompt(0, 100), Prompt(1, 20)])
    assert order[:10] == [1] * 8 + [0] + [1]
    assert order.count(0) == 100


def test_being_passed_over_counts_more_than_the_class() -> None:
    order = fill_all([Prompt(0, 3, background=True), Prompt(1, 30)])
    assert order.index(0) == PASS_LIMIT


def test_of_several_overdue_prompts_the_longest_waiting_goes_first() -> None:
    prompts = [Prompt(0, 1, passed=8), Prompt(2, 50, passed=9), Prompt(1, 50, passed=9)]
    assert pick_chunk(prompts) == 2
    assert pick_chunk(prompts) == 1
    assert pick_chunk(prompts) == 0


def test_whole_prompts_go_in_arrival_order() -> None:
    prompts = [Prompt(2, 2), Prompt(0, 1, background=True), Prompt(1, 12)]
    assert fill_all(prompts, whole_prompts=True) == [1] * 12 + [2, 2, 0]
    assert all(prompt.passed == 0 for prompt in prompts)


def test_without_a_prompt_there_is_nothing_to_pick() -> None:
    with pytest.raises(ValueError, match="no prompt is being filled"):
        pick_chunk([])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6))
def test_no_prompt_waits_for_long(sizes: list[tuple[int, bool]]) -> None:
    order = fill_all([Prompt(i, tokens, background) for i, (tokens, background) in enumerate(sizes)])
    assert len(order) == sum(tokens for tokens, _ in sizes)
    for i in range(len(sizes)):
        turns = [-1, *(turn for turn, arrival in enumerate(order) if arrival == i)]
        # Overdue prompts can only be held up by other overdue ones.
        assert max(b - a for a, b in pairwise(turns)) <= PASS_LIMIT + len(sizes)


def rounds_after(share: DecodeShare, seconds: float) -> int:
    """How many rounds of `seconds` run before the next chunk."""
    count = 0
    while share.may_round():
        share.spent(seconds)
        count += 1
    return count


def test_a_chunk_earns_a_quarter_of_its_time() -> None:
    share = DecodeShare()
    assert not share.may_round()
    share.chunk_done(1.0)
    assert rounds_after(share, 0.0625) == 4


def test_debt_carries_over_and_unspent_credit_does_not() -> None:
    share = DecodeShare(share=0.25)
    share.chunk_done(1.0)
    assert rounds_after(share, 1.0) == 1
    assert share.credit == -0.75
    counts = []
    for _ in range(4):
        share.chunk_done(1.0)
        counts.append(rounds_after(share, 0.125))
    assert counts == [0, 0, 0, 2]
    share.chunk_done(4.0)
    share.chunk_done(4.0)
    assert share.credit == 1.0


def test_rounds_after_a_chunk_are_limited_in_number() -> None:
    share = DecodeShare(max_rounds=32)
    share.chunk_done(100.0)
    assert rounds_after(share, 0.001) == 32
    share.chunk_done(100.0)
    assert rounds_after(share, 0.001) == 32


def test_a_share_of_zero_fills_whole_prompts_first() -> None:
    share = DecodeShare(share=0.0)
    assert share.whole_prompts
    assert not DecodeShare().whole_prompts
    for _ in range(5):
        share.chunk_done(10.0)
        assert not share.may_round()


def test_reset_forgets_debt_and_credit() -> None:
    share = DecodeShare()
    share.chunk_done(1.0)
    share.spent(50.0)
    share.reset()
    assert share.credit == 0.0
    assert not share.may_round()
    share.chunk_done(1.0)
    assert share.may_round()


@settings(deadline=None)
@given(st.floats(0.01, 2.0), st.lists(st.floats(0.001, 3.0), min_size=1, max_size=50), st.floats(0.001, 1.0))
def test_rounds_never_take_more_than_their_share_and_one_round(
    share: float, chunks: list[float], round_s: float
) -> None:
    policy = DecodeShare(share)
    rounds = 0
    for seconds in chunks:
        policy.chunk_done(seconds)
        rounds += rounds_after(policy, round_s)
    assert rounds * round_s <= share * sum(chunks) + round_s + 1e-6


@pytest.mark.parametrize("share", [-0.1, math.nan, math.inf])
def test_a_share_that_means_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="decode share"):
        DecodeShare(share)


def test_at_least_one_round_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        DecodeShare(max_rounds=0)


def test_the_newest_background_reply_yields() -> None:
    lanes = [Running(1), None, Running(7), Running(9, background=False), Running(5)]
    assert choose_victim(lanes) == 2


def test_finished_and_protected_replies_do_not_yield() -> None:
    lanes = [Running(1), Running(7, finished=True), Running(9, protected=True)]
    assert choose_victim(lanes) == 0


def test_nobody_yields_when_only_foreground_runs() -> None:
    assert choose_victim([]) is None
    assert choose_victim([None, Running(1, background=False)]) is None
