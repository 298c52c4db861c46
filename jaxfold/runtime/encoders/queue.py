"""Requests that wait for the encoder, and which of them its next call takes."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence

import numpy as np

from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.encoders.api import MAX_CALL_SEQUENCES
from jaxfold.runtime.encoders.api import MAX_CALL_TOKENS
from jaxfold.runtime.encoders.api import Embedded
from jaxfold.runtime.encoders.api import EmbeddingFailed
from jaxfold.runtime.encoders.api import EmbeddingSink


class Job:
    """One request: its sequences, the longest first in `todo`, and the vectors that are there already."""

    def __init__(
        self,
        sequences: Sequence[Sequence[int]],
        dimensions: int,
        sink: EmbeddingSink,
        cancel: Callable[["Job"], None],
    ) -> None:
        self.sequences = sequences
        self.tokens = sum(map(len, sequences))
        self.todo = deque(sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i)))
        self.missing = len(sequences)
        self.ended = False
        self._cancel = cancel
        self._sink = sink
        self._vectors = np.zeros((len(sequences), dimensions), np.float32)
        self._arrived = time.perf_counter()
        self._started: float | None = None

    @property
    def whole(self) -> bool:
        """Whether the request fits into one call."""
        return len(self.sequences) <= MAX_CALL_SEQUENCES and self.tokens <= MAX_CALL_TOKENS

    def cancel(self) -> None:
        self._cancel(self)

    def start(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def put(self, index: int, vector: np.ndarray) -> None:
        """The vector of one sequence."""
        self._vectors[index] = vector
        self.missing -= 1

    def finish(self) -> None:
        now = time.perf_counter()
        started = now if self._started is None else self._started
        self.ended = True
        self._sink(Embedded(self._vectors, started - self._arrived, now - started))

    def fail(self, message: str, cancelled: bool = False) -> None:
        self.ended = True
        self._sink(EmbeddingFailed(message, cancelled))


class EncoderQueue:
    """Bounded; first come, first served, but a request that needs several calls lets others go between them."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._jobs: deque[Job] = deque()
        self._max_requests = max_requests
        self._max_tokens = max_tokens

    def __len__(self) -> int:
        return len(self._jobs)

    def push(self, job: Job) -> None:
        """Queue a request; one that finds nobody waiting is always taken.

        Raises:
            QueueFullError: too many requests, or too many tokens, wait already.
        """
        waiting = sum(one.tokens for one in self._jobs)
        if len(self._jobs) >= self._max_requests or (self._jobs and waiting + job.tokens > self._max_tokens):
            raise QueueFullError(f"The embedding queue is full ({len(self._jobs)} requests, {waiting} tokens).")
        self._jobs.append(job)

    def remove(self, job: Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)

    def clear(self) -> list[Job]:
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def take(self) -> list[tuple[Job, int]]:
        """The sequences of the next call: whole requests while they fit, or a piece of one that never does."""
        taken: list[tuple[Job, int]] = []
        tokens = 0
        while self._jobs:
            job = self._jobs[0]
            if not job.whole:
                if taken:
                    break
                return self._piece()
            if len(taken) + len(job.todo) > MAX_CALL_SEQUENCES or tokens + job.tokens > MAX_CALL_TOKENS:
                break
            self._jobs.popleft()
            tokens += job.tokens
            taken += [(job, index) for index in job.todo]
            job.todo.clear()
        return taken

    def _piece(self) -> list[tuple[Job, int]]:
        """As much of the first request as one call takes; the rest of it goes to the end of the queue."""
        job = self._jobs.popleft()
        taken: list[tuple[Job, int]] = []
        tokens = 0
        while job.todo and len(taken) < MAX_CALL_SEQUENCES:
            tokens += len(job.sequences[job.todo[0]])
            if taken and tokens > MAX_CALL_TOKENS:
                break
            taken.append((job, job.todo.popleft()))
        if job.todo:
            self._jobs.append(job)
        return taken
