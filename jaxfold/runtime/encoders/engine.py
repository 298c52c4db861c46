"""The encoder's engine: one thread that takes what waits, packs it into programs and hands the vectors out."""

import logging
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence

import jax
import numpy as np

from jaxfold.models.encoder import EncoderWeights
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.encoders.api import EmbeddingSink
from jaxfold.runtime.encoders.api import EncoderInfo
from jaxfold.runtime.encoders.api import EncoderSnapshot
from jaxfold.runtime.encoders.packing import fill
from jaxfold.runtime.encoders.packing import pack
from jaxfold.runtime.encoders.programs import EncoderPrograms
from jaxfold.runtime.encoders.queue import EncoderQueue
from jaxfold.runtime.encoders.queue import Job
from jaxfold.runtime.programs import CompileCounter

LOG = logging.getLogger(__name__)
MAX_FAILURES = 3
"""Calls that may fail one after the other before the encoder calls itself unhealthy and stops."""
STEP_FAILED = "the encoder failed while computing this embedding"
CANCELLED = "the request was cancelled"
CLOSED = "the server is shutting down"

Member = tuple[Job, int]


class LocalEncoder:
    """`runtime.encoders.api.EncoderEngine` on this process's devices."""

    def __init__(
        self,
        programs: EncoderPrograms,
        weights: EncoderWeights,
        info: EncoderInfo,
        queue: EncoderQueue,
        compiles: CompileCounter,
        alignment: int,
    ) -> None:
        self.programs = programs
        self._weights = weights
        self._info = info
        self._queue = queue
        self._compiles = compiles
        self._alignment = alignment
        self._wake = threading.Condition()
        self._running: set[Job] = set()
        self._draining = self._closing = False
        self._failures = 0
        self._requests = self._cancelled = self._failed = 0
        self._sequences = self._tokens = self._rows = self._calls = 0
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="jaxfold-encoder", daemon=True)
        compiles.mark_ready()
        self._thread.start()

    @property
    def info(self) -> EncoderInfo:
        return self._info

    @property
    def healthy(self) -> bool:
        """False once the encoder has given up after repeated failures."""
        return self._failures < MAX_FAILURES

    def submit(self, sequences: Sequence[Sequence[int]], sink: EmbeddingSink) -> Job:
        """See `EncoderEngine.submit`."""
        self._check(sequences)
        job = Job(sequences, self._info.dimensions, sink, self._cancel)
        with self._wake:
            if self._closing or self._draining or not self.healthy:
                raise NotReadyError("The server is shutting down." if self.healthy else "The encoder has stopped.")
            self._queue.push(job)
            self._wake.notify()
        return job

    def mark_ready(self) -> None:
        self._compiles.mark_ready()

    def drain(self) -> None:
        with self._wake:
            self._draining = True

    def close(self, timeout_s: float = 10.0) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def snapshot(self) -> EncoderSnapshot:
        with self._wake:
            return EncoderSnapshot(
                ready=not (self._draining or self._closing) and self.healthy,
                healthy=self.healthy,
                requests_running=len(self._running),
                requests_waiting=len(self._queue),
                requests_total=self._requests,
                cancelled_total=self._cancelled,
                failed_total=self._failed,
                sequences_total=self._sequences,
                tokens_total=self._tokens,
                rows_total=self._rows,
                calls_total=self._calls,
                seconds_total=self._seconds,
                compiles_after_ready=self._compiles.since_ready,
            )

    def _check(self, sequences: Sequence[Sequence[int]]) -> None:
        most = self._info.context_length
        if not sequences or not all(0 < len(sequence) <= most for sequence in sequences):
            raise ValueError(f"a request needs at least one sequence, each of 1 to {most} tokens")
        if min(map(min, sequences)) < 0 or max(map(max, sequences)) >= self._info.vocab_size:
            raise ValueError(f"token ids must be in 0..{self._info.vocab_size - 1}")

    def _cancel(self, job: Job) -> None:
        with self._wake:
            if job.ended:
                return
            job.ended = True
            self._cancelled += 1
            self._queue.remove(job)
            self._running.discard(job)
        job.fail(CANCELLED, cancelled=True)

    # The thread

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (len(self._queue) or self._closing):
                    self._wake.wait()
                if self._closing or not self.healthy:
                    left = [*self._queue.clear(), *self._running]
                    break
                members = self._queue.take()
                self._running.update(job for job, _ in members)
            for job, _ in members:
                job.start()
            self._call(members)
        for job in left:
            self._end(job, CLOSED if self.healthy else STEP_FAILED)

    def _call(self, members: Sequence[Member]) -> None:
        """Run one call to its end. What fails here fails the requests that have a part in it, and no others."""
        begun = time.perf_counter()
        try:
            for held, vectors in self._computed(members):
                for (job, index), vector in zip(held, vectors, strict=False):
                    self._put(job, index, vector)
            self._failures = 0
        except Exception:
            self._failures += 1
            LOG.exception("an encoder call failed (%d in a row)", self._failures)
            for job in {job for job, _ in members}:
                self._end(job, STEP_FAILED)
        with self._wake:
            self._calls += 1
            self._seconds += time.perf_counter() - begun

    def _computed(self, members: Sequence[Member]) -> Iterator[tuple[Sequence[Member], np.ndarray]]:
        """Members and their vectors, program by program; the next program runs while the last one's are read."""
        lengths = [len(job.sequences[index]) for job, index in members]
        last: tuple[Sequence[Member], jax.Array] | None = None
        for packed in pack(lengths, self.programs.counts, self._alignment):
            held = [members[at] for at in packed.members if not members[at][0].ended]
            if held:
                sequences = [job.sequences[index] for job, index in held]
                batch = fill(sequences, packed.rows, self._alignment)
                with self._wake:
                    self._sequences += len(sequences)
                    self._tokens += sum(map(len, sequences))
                    self._rows += packed.rows
                now = (held, self.programs.run(self._weights, batch))
                if last is not None:
                    yield last[0], np.asarray(last[1])
                last = now
        if last is not None:
            yield last[0], np.asarray(last[1])

    def _put(self, job: Job, index: int, vector: np.ndarray) -> None:
        with self._wake:
            if job.ended:
                return
            job.put(index, vector)
            if job.missing:
                return
            job.ended = True
            self._requests += 1
            self._running.discard(job)
        job.finish()

    def _end(self, job: Job, message: str) -> None:
        with self._wake:
            if job.ended:
                return
            job.ended = True
            self._failed += 1
            self._queue.remove(job)
            self._running.discard(job)
        job.fail(message)
