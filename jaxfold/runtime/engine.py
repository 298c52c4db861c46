"""The engine: one thread that runs the core's rounds, and the thread-safe door to it."""

import logging
import threading
import time
from collections.abc import Callable

from jaxfold.runtime.api import MAX_LOGPROBS
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineInfo
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import EngineSnapshot
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import Sink
from jaxfold.runtime.api import default_seed
from jaxfold.runtime.core import STEP_FAILED
from jaxfold.runtime.core import Core
from jaxfold.runtime.device import Round
from jaxfold.runtime.lanes import Job
from jaxfold.runtime.programs import CompileCounter
from jaxfold.runtime.sampling.rows import prepare

LOG = logging.getLogger(__name__)
MAX_FAILURES = 3
"""Steps that may fail one after the other before the engine calls itself unhealthy and stops."""


class LocalEngine:
    """`runtime.api.Engine` on this process's devices.

    Two loops stand side by side: `_plain` waits for each round before it plans the next; `_overlapped` dispatches the
    next round before it reads the tokens of the last one. They give the same tokens.
    """

    def __init__(
        self, core: Core, info: EngineInfo, compiles: CompileCounter, *, overlap: bool, seed_salt: int
    ) -> None:
        self._core = core
        self._info = info
        self._compiles = compiles
        self._seed_salt = seed_salt
        self._wake = threading.Condition(core.lock)
        self._cancels: set[str] = set()
        self._known: dict[str, Sink] = {}
        self._arrivals = 0
        self._draining = False
        self._closing = False
        self._failures = 0
        self._abandoned = False
        self._checked = True
        self._thread = threading.Thread(
            target=self._run, args=(self._overlapped if overlap else self._plain,), name="jaxfold-engine", daemon=True
        )
        compiles.mark_ready()
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def core(self) -> Core:
        """The state machine, for tests and tools; touch it only while the engine is idle."""
        return self._core

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """See `runtime.api.Engine.submit`.

        Raises:
            ValueError: the request itself makes no sense (no prompt, ids outside the vocabulary, a reused id).
        """
        self._check(request)
        sampling = request.sampling
        seed = default_seed(request.prompt_ids, self._seed_salt) if sampling.seed is None else sampling.seed
        with self._wake:
            if self._closing or self._draining or not self.healthy:
                raise NotReadyError("The server is shutting down." if self.healthy else "The engine has stopped.")
            if request.request_id in self._known:
                raise ValueError(f"request id {request.request_id!r} is in use")
            self._arrivals += 1
            job = Job(
                request, self._forgetting(request.request_id, sink), seed, prepare(sampling, seed), self._arrivals,
                time.perf_counter(),
            )  # fmt: skip
            self._core.queue.push(job, self._core.lanes.count(None), bounded=not request.accepted)
            self._known[request.request_id] = sink
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        with self._wake:
            if request_id in self._known:
                self._cancels.add(request_id)
                self._wake.notify()

    def drain(self) -> None:
        with self._wake:
            self._draining = True

    def close(self, timeout_s: float = 10.0) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def abandon(self, message: str) -> None:
        """Nothing can be computed any more: every request ends with this error. Any thread may call this."""
        with self._wake:
            self._abandoned = True
            known, self._known = self._known, {}
            self._wake.notify()
        for request_id, sink in known.items():
            try:
                sink(Failed(message))
            except Exception:
                LOG.exception("the sink of request %s raised at its end", request_id)

    @property
    def healthy(self) -> bool:
        """False once the engine has given up after repeated failures, or was abandoned."""
        return self._failures < MAX_FAILURES and not self._abandoned

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits and the books were checked since."""
        with self._wake:
            return self._checked and not self._known

    def snapshot(self) -> EngineSnapshot:
        core = self._core
        running = core.running
        counters = core.counters
        drafts = counters.drafts
        filling = sum(lane.filling for lane in running)
        used, cached, total = core.pages.used()
        context = self._info.context_length
        return EngineSnapshot(
            ready=not (self._draining or self._closing) and self.healthy,
            healthy=self.healthy,
            requests_running=len(running),
            requests_waiting=len(core.queue),
            lanes_decoding=len(running) - filling,
            lanes_prefilling=filling,
            requests_total=counters.requests,
            prompt_tokens_total=counters.prompt_tokens,
            cached_tokens_total=counters.cached_tokens,
            completion_tokens_total=counters.completion_tokens,
            generation_tokens_running=sum(len(lane.job.sent) for lane in running),
            prefill_seconds_total=counters.prefill_seconds,
            decode_seconds_total=counters.decode_seconds,
            rounds_total=counters.rounds,
            chunks_total=counters.chunks,
            drafted_total=sum(drafted for drafted, _ in drafts.values()),
            accepted_total=sum(accepted for _, accepted in drafts.values()),
            preemptions_total=counters.preemptions,
            cancelled_total=counters.cancelled,
            failed_total=counters.failed,
            compiles_after_ready=self._compiles.since_ready,
            pages_used=used,
            pages_cached=cached,
            pages_total=total,
            lane_kv_usage={lane.slot: (lane.filled + lane.committed) / context for lane in running},
            drafts=drafts,
        )

    def _check(self, request: EngineRequest) -> None:
        prompt, reply, window = len(request.prompt_ids), request.max_tokens, self._info.context_length
        scores = request.score_prompt or bool(request.labels)
        if not prompt or reply < (0 if scores else 1):
            raise ValueError("a request needs at least one prompt token and one token of reply")
        if not all(0 <= label < self._info.vocab_size for label in request.labels):
            raise ValueError(f"labels must be in 0..{self._info.vocab_size - 1}")
        if not 0 <= (request.logprobs or 0) <= MAX_LOGPROBS:
            raise ValueError(f"logprobs must be in 0..{MAX_LOGPROBS}")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._info.vocab_size:
            raise ValueError(f"prompt ids must be in 0..{self._info.vocab_size - 1}")
        if any(not 0 <= token < self._info.vocab_size for token, _ in request.sampling.logit_bias):
            raise ValueError(f"logit_bias ids must be in 0..{self._info.vocab_size - 1}")
        if prompt + reply > window:
            raise CapacityError(
                f"This model's maximum context length is {window} tokens, but the prompt has {prompt} tokens and the "
                f"reply may take {reply}."
            )
        pages = self._core.pages
        for group, spec in pages.groups.items():
            needed = pages.needed(group, prompt + reply)
            if needed > spec.pool.total:
                raise CapacityError(
                    f"The request needs {needed} cache pages of {self._info.page_size} tokens; the cache has "
                    f"{spec.pool.total}."
                )

    def _forgetting(self, request_id: str, sink: Sink) -> Sink:
        """The caller's sink, which also frees the request's id when its last event passes."""

        def forward(event: EngineEvent) -> None:
            if isinstance(event, Finished | Failed):
                with self._wake:
                    self._cancels.discard(request_id)
                    if self._known.pop(request_id, None) is None:
                        return
            elif self._abandoned:
                return
            sink(event)

        return forward

    # The thread

    def _run(self, loop: Callable[[], None]) -> None:
        while not self._closing and self.healthy:
            try:
                loop()
            except Exception:
                if self._abandoned:
                    return
                if not self._core.device.alone:
                    LOG.exception("a step failed that several hosts shared")
                    self.abandon(STEP_FAILED)
                    return
                self._failures += 1
                LOG.exception("a step failed (%d in a row)", self._failures)
                self._core.fail_running(STEP_FAILED)
        with self._wake:
            self._core.cancel(self._known.copy())

    def _plain(self) -> None:
        """Dispatch a round, wait for it, commit it; then the next."""
        while self._turn():
            round_ = self._core.dispatch()
            if round_ is not None:
                self._collect(round_)

    def _overlapped(self) -> None:
        """Dispatch the next round before the last one's tokens are read; a token drawn past an end is dropped.

        Drafts need known tokens: where they may be worth it, the last round is read first, as in the plain loop.
        """
        last: Round | None = None
        while self._turn(busy=last is not None):
            if last is not None and self._core.should_wait():
                self._collect(last)
                last = None
            round_ = self._core.dispatch()
            if last is not None:
                self._collect(last)
            last = round_
            if last is not None and last.verifies:
                self._collect(last)
                last = None

    def _collect(self, round_: Round) -> None:
        self._core.collect(round_)
        self._failures = 0

    def _turn(self, busy: bool = False) -> bool:
        """Between two rounds: cancellations, admissions, and rest when there is nothing to do. False: close."""
        core = self._core
        with self._wake:
            if not (busy or core.running or len(core.queue) or self._cancels or self._closing):
                if not self._checked:
                    core.check_integrity()
                    self._checked = True
                self._wake.wait()
            cancels, self._cancels = self._cancels, set()
            self._checked = self._checked and not (core.running or len(core.queue))
            if self._closing:
                return False
        core.cancel(cancels)
        core.admit()
        return True
