"""Speed of a running engine, seen through its door: no JAX, no HTTP, any engine."""

import math
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Tokens

TIMEOUT_S = 600.0
PROMPT_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Timeline:
    """When the tokens of one reply arrived: (seconds on a monotonic clock, tokens) for each event, in order."""

    submitted: float
    events: tuple[tuple[float, int], ...]

    @property
    def first(self) -> float:
        return self.events[0][0]

    @property
    def last(self) -> float:
        return self.events[-1][0]

    def tokens_between(self, begin: float, end: float) -> int:
        """Tokens that arrived after `begin`, up to and at `end`."""
        return sum(count for at, count in self.events if begin < at <= end)


class MeasureError(Exception):
    """A request of the measurement failed. The message is one sentence."""


class _Recorder:
    """The sink of one request. Called on the engine's thread."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self.failure: str | None = None
        self.done = threading.Event()

    def __call__(self, event: EngineEvent) -> None:
        match event:
            case Tokens():
                self.events.append((time.monotonic(), len(event.ids)))
            case Failed():
                self.failure = event.message
                self.done.set()
            case Finished():
                self.done.set()


def prompt_ids(vocab_size: int, length: int, seed: int) -> tuple[int, ...]:
    """A prompt of random ids; the same seed gives the same prompt."""
    source = random.Random(seed)
    return tuple(source.randrange(vocab_size) for _ in range(length))


def generate(engine: Engine, prompts: Sequence[tuple[int, ...]], tokens: int) -> list[Timeline]:
    """Run the prompts at the same time, each for exactly `tokens` greedy tokens; nothing is reused between calls.

    Raises:
        MeasureError: a reply failed, or did not end in ten minutes.
        EngineError: the engine refused a request.
    """
    salt = uuid.uuid4().hex
    recorders = [_Recorder() for _ in prompts]
    submitted = time.monotonic()
    for at, (prompt, recorder) in enumerate(zip(prompts, recorders, strict=True)):
        # Replies to random prompts repeat themselves: drafts would make the numbers say something else.
        request = EngineRequest(f"bench-{salt}-{at}", prompt, tokens, GREEDY, draft=False, cache_salt=salt)
        engine.submit(request, recorder)
    for recorder in recorders:
        if not recorder.done.wait(TIMEOUT_S):
            raise MeasureError(f"a reply of {tokens} tokens did not end in {TIMEOUT_S:g} s")
        if recorder.failure is not None or not recorder.events:
            raise MeasureError(f"a reply failed: {recorder.failure or 'no token came'}")
    return [Timeline(submitted, tuple(recorder.events)) for recorder in recorders]


def decode_rate(timelines: Sequence[Timeline]) -> float:
    """Tokens a second, all replies together, while every one of them was decoding.

    Raises:
        MeasureError: there was no such moment (replies too short).
    """
    begin = max(timeline.first for timeline in timelines)
    end = min(timeline.last for timeline in timelines)
    if end <= begin:
        raise MeasureError("the replies did not overlap: use more --tokens")
    return sum(timeline.tokens_between(begin, end) for timeline in timelines) / (end - begin)


def prefill_rate(engine: Engine, length: int, seed: int) -> float:
    """Prompt tokens a second of one prompt of `length` tokens on an idle engine, from submission to the first token."""
    timeline = generate(engine, [prompt_ids(engine.info.vocab_size, length, seed)], 1)[0]
    return length / (timeline.first - timeline.submitted)


def decode_rates(engine: Engine, lanes: int, tokens: int, repeat: int) -> list[float]:
    """`decode_rate` of `lanes` replies, `repeat` times."""
    vocab = engine.info.vocab_size
    rates = []
    for turn in range(repeat):
        prompts = [prompt_ids(vocab, PROMPT_TOKENS, turn * lanes + lane) for lane in range(lanes)]
        rates.append(decode_rate(generate(engine, prompts, tokens)))
    return rates


@dataclass(frozen=True)
class Ratio:
    """The mean of paired ratios with its 95 % interval (normal, on the logarithms)."""

    pairs: int
    mean: float
    low: float
    high: float


def compare(one: Callable[[int], float], other: Callable[[int], float], pairs: int) -> tuple[list[float], list[float]]:
    """Measure both in turn, `pairs` times, each first in every second pair, so that drift meets both alike."""
    ones, others = [], []
    for turn in range(pairs):
        if turn % 2:
            others.append(other(turn))
            ones.append(one(turn))
        else:
            ones.append(one(turn))
            others.append(other(turn))
    return ones, others


def ratio(ones: Sequence[float], others: Sequence[float]) -> Ratio:
    """Of `ones` to `others`, pair by pair. At least two pairs."""
    logs = [math.log(one / other) for one, other in zip(ones, others, strict=True)]
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(len(logs), math.exp(middle), math.exp(middle - half), math.exp(middle + half))
