"""Which sequences the next call takes: whole requests in order, large ones in pieces that let others go between."""

import pytest

from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.encoders.api import MAX_CALL_SEQUENCES
from jaxfold.runtime.encoders.api import MAX_CALL_TOKENS
from jaxfold.runtime.encoders.queue import EncoderQueue
from jaxfold.runtime.encoders.queue import Job


def job(*lengths: int) -> Job:
    return Job([[1] * length for length in lengths], 4, lambda _: None, lambda _: None)


def test_waiting_requests_go_together() -> None:
    queue = EncoderQueue(10, 10_000)
    first, second, third = job(3, 5), job(7), job(2)
    for one in (first, second, third):
        queue.push(one)
    # The longest of a request first.
    assert queue.take() == [(first, 1), (first, 0), (second, 0), (third, 0)]
    assert len(queue) == 0 and queue.take() == []


@pytest.mark.parametrize("lengths", [[1] * 40, [MAX_CALL_TOKENS // 2 + 1]])
def test_a_request_that_does_not_fit_waits_whole(lengths: list[int]) -> None:
    queue = EncoderQueue(10, 100_000)
    first, second = job(*lengths), job(*lengths)
    queue.push(first)
    queue.push(second)
    assert {one for one, _ in queue.take()} == {first}
    assert {one for one, _ in queue.take()} == {second}


def test_a_large_request_lets_others_go_between_its_pieces() -> None:
    queue = EncoderQueue(10, 1 << 20)
    large, small = job(*[4] * (2 * MAX_CALL_SEQUENCES + 3)), job(5)
    queue.push(large)
    queue.push(small)
    taken = [queue.take() for _ in range(4)]
    assert [len(members) for members in taken] == [MAX_CALL_SEQUENCES, 1, MAX_CALL_SEQUENCES, 3]
    assert taken[1] == [(small, 0)]
    indices = [index for members in taken for one, index in members if one is large]
    assert sorted(indices) == list(range(2 * MAX_CALL_SEQUENCES + 3))


def test_a_piece_keeps_to_the_tokens_of_a_call() -> None:
    queue = EncoderQueue(10, 1 << 20)
    long = MAX_CALL_TOKENS // 3
    queue.push(job(long, long, long, long, 10))
    assert [len(queue.take()) for _ in range(2)] == [3, 2]


def test_the_queue_is_bounded() -> None:
    queue = EncoderQueue(2, 10)
    queue.push(job(50))
    with pytest.raises(QueueFullError, match="1 requests, 50 tokens"):
        queue.push(job(1))
    queue.take()
    queue.push(job(4))
    queue.push(job(6))
    with pytest.raises(QueueFullError):
        queue.push(job(1))
