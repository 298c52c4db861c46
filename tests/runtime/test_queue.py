"""The waiting queue: order, limits, ageing and cancellation."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.pages import IntegrityError
from jaxfold.runtime.queue import RequestQueue


@dataclass(frozen=True)
class Item:
    arrival: int
    background: bool = False
    prompt_tokens: int = 10

    @property
    def request_id(self) -> str:
        return f"r{self.arrival}"


def queue_of(*items: Item, age_limit: int = 64) -> RequestQueue[Item]:
    queue = RequestQueue[Item](max_requests=100, max_tokens=1000, age_limit=age_limit)
    for item in items:
        queue.push(item)
    return queue


def arrivals(items: Iterable[Item | None]) -> list[int]:
    return [item.arrival for item in items if item is not None]


def take_all(queue: RequestQueue[Item]) -> list[int]:
    return arrivals([queue.next() for _ in range(len(queue))])


def test_foreground_first_and_arrival_order_within_a_class() -> None:
    queue = queue_of(Item(1, True), Item(2), Item(3, True), Item(4))
    assert (len(queue), queue.tokens, queue.foreground_waiting) == (4, 40, 2)
    assert queue.peek() == Item(2)
    assert take_all(queue) == [2, 4, 1, 3]
    assert queue.peek() is None
    assert queue.next() is None
    assert (len(queue), queue.tokens) == (0, 0)


def test_the_rest_of_an_accepted_call_joins_past_the_limits() -> None:
    queue = RequestQueue[Item](max_requests=1, max_tokens=20)
    queue.push(Item(1))
    for arrival in range(2, 6):
        queue.push(Item(arrival), bounded=False)
    queue.check_integrity()
    with pytest.raises(QueueFullError):
        queue.push(Item(6))
    assert take_all(queue) == [1, 2, 3, 4, 5]


def test_one_request_too_many_is_refused_with_the_numbers() -> None:
    queue = RequestQueue[Item](max_requests=2, max_tokens=1000)
    queue.push(Item(1))
    queue.push(Item(2, True))
    with pytest.raises(QueueFullError, match="2 of at most 2 requests are waiting") as refusal:
        queue.push(Item(3))
    assert refusal.value.retry_after >= 1
    queue.check_integrity()
    queue.next()
    queue.push(Item(3))
    assert take_all(queue) == [3, 2]


def test_too_many_tokens_are_refused_with_the_numbers() -> None:
    queue = RequestQueue[Item](max_requests=10, max_tokens=100)
    queue.push(Item(1, prompt_tokens=60))
    with pytest.raises(
        QueueFullError, match="60 prompt tokens are waiting, this request adds 41, and the limit is 100"
    ):
        queue.push(Item(2, prompt_tokens=41))
    queue.push(Item(3, prompt_tokens=40))
    assert queue.tokens == 100
    assert "r2" not in queue


def test_a_single_huge_prompt_is_accepted_when_nothing_waits() -> None:
    queue = RequestQueue[Item](max_requests=10, max_tokens=100)
    queue.push(Item(1, prompt_tokens=5000))
    with pytest.raises(QueueFullError, match="5000 prompt tokens are waiting"):
        queue.push(Item(2, prompt_tokens=1))


def test_a_preempted_request_goes_before_later_ones_of_its_class_and_past_the_limits() -> None:
    queue = RequestQueue[Item](max_requests=2, max_tokens=20)
    queue.push(Item(5, True))
    queue.push(Item(6))
    for arrival in (2, 4, 3):
        queue.push_front(Item(arrival, True))
    queue.check_integrity()
    assert take_all(queue) == [6, 2, 3, 4, 5]


def test_an_id_waits_once() -> None:
    queue = queue_of(Item(1))
    with pytest.raises(ValueError, match="'r1' is already waiting"):
        queue.push(Item(1, True))
    with pytest.raises(ValueError, match="'r1' is already waiting"):
        queue.push_front(Item(1))
    assert queue.tokens == 10


def test_cancel_takes_one_out_and_ignores_strangers() -> None:
    queue = queue_of(Item(1), Item(2, True), Item(3))
    assert "r2" in queue
    assert queue.cancel("r2") == Item(2, True)
    assert queue.cancel("r2") is None
    assert queue.cancel("nobody") is None
    assert queue.tokens == 20
    assert take_all(queue) == [1, 3]


def test_clear_returns_everything_in_order() -> None:
    queue = queue_of(Item(1, True), Item(2), Item(3, True))
    assert arrivals(queue.clear()) == [2, 1, 3]
    assert (len(queue), queue.tokens) == (0, 0)
    queue.check_integrity()


def test_a_background_request_is_due_after_enough_foreground_ones() -> None:
    queue = queue_of(Item(0, True), Item(1, True), *(Item(n) for n in range(2, 12)), age_limit=3)
    assert take_all(queue) == [2, 3, 4, 0, 5, 6, 7, 1, 8, 9, 10, 11]


def test_due_is_told_before_the_request_is_taken() -> None:
    queue = queue_of(Item(0, True), Item(1), Item(2), age_limit=1)
    assert [queue.due, queue.next(), queue.due] == [False, Item(1), True]
    assert queue.peek() == Item(0, True)
    assert [queue.next(), queue.due] == [Item(0, True), False]


def test_a_lane_cleared_for_a_foreground_request_is_not_given_to_a_due_one() -> None:
    queue = queue_of(Item(0, True), Item(1), Item(2), age_limit=1)
    queue.next()
    assert queue.peek(foreground_only=True) == Item(2)
    assert queue.next(foreground_only=True) == Item(2)
    assert queue.next(foreground_only=True) is None
    assert queue.due
    assert queue.next() == Item(0, True)


def test_passes_are_forgotten_when_no_background_request_waits() -> None:
    queue = queue_of(Item(0, True), Item(1), Item(2), Item(3), age_limit=2)
    assert [queue.next(), queue.next(), queue.due] == [Item(1), Item(2), True]
    assert [queue.cancel("r0"), queue.due] == [Item(0, True), False]
    queue.push(Item(4, True))
    assert take_all(queue) == [3, 4]


def test_a_background_request_never_starves() -> None:
    queue = queue_of(*(Item(n, True) for n in range(3)))
    taken = []
    for n in range(1000):
        queue.push(Item(10 + n))
        taken.append(queue.next())
    background = [i for i, item in enumerate(taken) if item is not None and item.background]
    assert background == [64, 129, 194]


@pytest.mark.parametrize("limits", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_limits_that_let_nothing_through_are_refused(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        RequestQueue[Item](*limits)


def test_integrity_sees_wrong_books() -> None:
    queue = queue_of(Item(1))
    queue._tokens = 3
    with pytest.raises(IntegrityError, match="counts 3 waiting tokens but holds 10"):
        queue.check_integrity()


verbs = st.sampled_from(["push", "next", "foreground", "cancel", "preempt"])


@settings(deadline=None)
@given(st.lists(st.tuples(verbs, st.booleans(), st.integers(0, 40)), max_size=80))
def test_order_holds_under_any_mix_of_calls(steps: list[tuple[str, bool, int]]) -> None:
    queue = RequestQueue[Item](max_requests=6, max_tokens=120, age_limit=4)
    waiting: list[Item] = []
    running: list[Item] = []
    for arrival, (verb, background, number) in enumerate(steps):
        taken: Item | None = None
        if verb == "push":
            item = Item(arrival, background, number)
            fits = len(waiting) < 6 and (not waiting or sum(w.prompt_tokens for w in waiting) + number <= 120)
            if fits:
                queue.push(item)
                waiting.append(item)
            else:
                with pytest.raises(QueueFullError):
                    queue.push(item)
        elif verb == "cancel":
            found = queue.cancel(f"r{number}")
            assert found == next((w for w in waiting if w.arrival == number), None)
            waiting = [w for w in waiting if w.arrival != number]
        elif verb == "preempt" and running:
            waiting.append(running.pop(number % len(running)))
            queue.push_front(waiting[-1])
        elif verb in ("next", "foreground"):
            only = verb == "foreground"
            due = queue.due and not only
            classes = [
                [w for w in waiting if w.background == b] for b in ((True,) if due else (False, True)[: 2 - only])
            ]
            expected = min(next((c for c in classes if c), []), key=lambda w: w.arrival, default=None)
            assert queue.peek(only) == expected
            taken = queue.next(only)
            assert taken == expected
        if taken is not None:
            waiting.remove(taken)
            running.append(taken)
        queue.check_integrity()
        assert len(queue) == len(waiting)
        assert queue.tokens == sum(w.prompt_tokens for w in waiting)


def test_requests_on_their_way_to_a_free_lane_do_not_count() -> None:
    queue: RequestQueue[Item] = RequestQueue(2, 1000)
    for i in range(5):
        queue.push(Item(i), spare=3)
    with pytest.raises(QueueFullError, match="2 of at most 2"):
        queue.push(Item(5), spare=3)
