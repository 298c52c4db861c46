"""The encoder's engine: bits that do not depend on company, cancellation, failures, limits, and the program cache."""

import queue
import random
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.encoders.api import Embedded
from jaxfold.runtime.encoders.api import EmbeddingFailed
from jaxfold.runtime.encoders.engine import CANCELLED
from jaxfold.runtime.encoders.engine import CLOSED
from jaxfold.runtime.encoders.engine import MAX_FAILURES
from jaxfold.runtime.encoders.engine import STEP_FAILED
from jaxfold.runtime.encoders.engine import LocalEncoder
from jaxfold.runtime.encoders.loader import EncoderOptions
from jaxfold.runtime.encoders.loader import LoadedEncoder
from jaxfold.runtime.encoders.loader import load_encoder
from tests.models.encoder_support import ENCODERS

TIMEOUT_S = 60
Sequences = Sequence[Sequence[int]]


def wait(outcomes: "queue.Queue[Any]") -> Any:
    return outcomes.get(timeout=TIMEOUT_S)


def embed(engine: LocalEncoder, sequences: Sequences) -> np.ndarray:
    outcomes: queue.Queue[Any] = queue.Queue()
    engine.submit(sequences, outcomes.put)
    done = wait(outcomes)
    assert isinstance(done, Embedded), done
    return done.vectors


def texts(count: int, seed: int = 0, longest: int = 60) -> list[list[int]]:
    chosen = random.Random(seed)
    return [[chosen.randrange(300) for _ in range(chosen.randint(1, longest))] for _ in range(count)]


@contextmanager
def held(engine: LocalEncoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engine's thread stands still in its next call, until the event is set or the block ends."""
    entered, go = threading.Event(), threading.Event()
    run = engine.programs.run

    def slow(*args: Any) -> Any:
        entered.set()
        assert go.wait(TIMEOUT_S)
        return run(*args)

    monkeypatch.setattr(engine.programs, "run", slow)
    first: queue.Queue[Any] = queue.Queue()
    engine.submit([[1]], first.put)
    assert entered.wait(TIMEOUT_S)
    try:
        yield go
    finally:
        go.set()
        assert isinstance(wait(first), Embedded)
        monkeypatch.undo()


def test_bits_do_not_depend_on_company(loaded: LoadedEncoder) -> None:
    assert loaded.engine.info.exact
    sequences = texts(40)
    together = embed(loaded.engine, sequences)
    for index in (0, 7, 39):
        np.testing.assert_array_equal(embed(loaded.engine, [sequences[index]])[0], together[index])
    shuffled = list(range(40))
    random.Random(1).shuffle(shuffled)
    np.testing.assert_array_equal(embed(loaded.engine, [sequences[i] for i in shuffled]), together[shuffled])


def test_waiting_requests_share_a_call(loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, outcomes = loaded.engine, [queue.Queue[Any]() for _ in range(5)]
    alone = [embed(engine, texts(3, seed)) for seed in range(5)]
    before = engine.snapshot()
    with held(engine, monkeypatch):
        for seed, outcome in enumerate(outcomes):
            engine.submit(texts(3, seed), outcome.put)
        assert engine.snapshot().requests_waiting == 5
    for wanted, outcome in zip(alone, outcomes, strict=True):
        np.testing.assert_array_equal(wait(outcome).vectors, wanted)
    after = engine.snapshot()
    assert after.calls_total - before.calls_total == 2
    assert after.requests_total - before.requests_total == 6
    assert after.sequences_total - before.sequences_total == 16
    assert after.compiles_after_ready == 0


def test_a_request_larger_than_a_call(loaded: LoadedEncoder) -> None:
    sequences = texts(150, seed=3)
    together = embed(loaded.engine, sequences)
    for index in (0, 80, 149):
        np.testing.assert_array_equal(embed(loaded.engine, [sequences[index]])[0], together[index])


def test_cancelling_one_caller_leaves_the_others(loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, kept, dropped = loaded.engine, queue.Queue[Any](), queue.Queue[Any]()
    before = engine.snapshot()
    with held(engine, monkeypatch):
        ticket = engine.submit(texts(2, 1), dropped.put)
        engine.submit(texts(2, 2), kept.put)
        ticket.cancel()
        ticket.cancel()
        assert wait(dropped) == EmbeddingFailed(CANCELLED, cancelled=True)
        assert engine.snapshot().requests_waiting == 1
    np.testing.assert_array_equal(wait(kept).vectors, embed(engine, texts(2, 2)))
    after = engine.snapshot()
    assert after.cancelled_total - before.cancelled_total == 1
    assert dropped.empty() and after.requests_running == 0


def test_cancelling_in_the_middle_of_a_call(loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, outcome = loaded.engine, queue.Queue[Any]()
    run, tickets = engine.programs.run, queue.Queue[Any]()

    def cancelling(*args: Any) -> Any:
        tickets.get(timeout=TIMEOUT_S).cancel()
        return run(*args)

    monkeypatch.setattr(engine.programs, "run", cancelling)
    before = engine.snapshot().sequences_total
    tickets.put(engine.submit(texts(60, longest=60), outcome.put))
    assert wait(outcome) == EmbeddingFailed(CANCELLED, cancelled=True)
    monkeypatch.undo()
    embed(engine, [[1]])
    # The first program ran; those after it had nobody left to run for.
    assert engine.snapshot().sequences_total - before < 60


def test_a_failed_call_fails_its_requests_only(loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, outcome = loaded.engine, queue.Queue[Any]()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setattr(engine.programs, "run", broken)
    engine.submit([[1, 2]], outcome.put)
    assert wait(outcome) == EmbeddingFailed(STEP_FAILED)
    monkeypatch.undo()
    assert embed(engine, [[1, 2]]).shape == (1, 48)
    assert engine.snapshot().healthy


@pytest.mark.parametrize("sequences", [[], [[]], [[1], []], [[1] * 65], [[-1]], [[10**6]]])
def test_requests_that_make_no_sense(loaded: LoadedEncoder, sequences: Sequences) -> None:
    with pytest.raises(ValueError, match=r"sequence|token ids"):
        loaded.engine.submit(sequences, lambda _: None)


@pytest.fixture
def own(programs: Path) -> Iterator[LocalEncoder]:
    """An engine of the test's own, from the cache of programs."""
    options = EncoderOptions(model=ENCODERS / "bert", compile_cache_dir=programs, max_queue=2, self_check=False)
    engine = load_encoder(options).engine
    yield engine
    engine.close()


def test_a_second_start_compiles_nothing(programs: Path) -> None:
    lines: list[str] = []
    options = EncoderOptions(model=ENCODERS / "bert", compile_cache_dir=programs, context=32)
    encoder = load_encoder(options, lines.append)
    assert any(line.startswith("loading") and "programs" in line for line in lines), lines
    assert encoder.engine.info.context_length == 32
    with pytest.raises(ValueError, match="1 to 32"):
        encoder.engine.submit([[1] * 33], lambda _: None)
    encoder.engine.close()


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(CapacityError, match="at most 64 tokens, not 65"):
        load_encoder(EncoderOptions(model=ENCODERS / "bert", context=65))


def test_the_queue_refuses_and_draining_goes_on(own: LocalEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: queue.Queue[Any] = queue.Queue()
    with held(own, monkeypatch):
        for _ in range(2):
            own.submit([[1, 2, 3]], outcomes.put)
        with pytest.raises(QueueFullError):
            own.submit([[1]], outcomes.put)
        own.drain()
        with pytest.raises(NotReadyError):
            own.submit([[1]], outcomes.put)
        assert not own.snapshot().ready
    assert all(isinstance(wait(outcomes), Embedded) for _ in range(2))


def test_closing_ends_what_waits(own: LocalEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: queue.Queue[Any] = queue.Queue()
    with held(own, monkeypatch):
        own.submit([[1, 2, 3]], outcomes.put)
        own.close(timeout_s=0)
    assert wait(outcomes) == EmbeddingFailed(CLOSED)


def test_repeated_failures_stop_the_engine(own: LocalEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setattr(own.programs, "run", broken)
    for _ in range(MAX_FAILURES):
        outcomes: queue.Queue[Any] = queue.Queue()
        own.submit([[1]], outcomes.put)
        assert wait(outcomes) == EmbeddingFailed(STEP_FAILED)
    while own.snapshot().healthy:
        pass
    with pytest.raises(NotReadyError, match="has stopped"):
        own.submit([[1]], lambda _: None)
