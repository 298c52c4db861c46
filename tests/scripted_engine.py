"""An engine for tests of everything above it: replays given ids on a thread of its own, with faults on demand.

It keeps the engine's contract: events come from its thread, the end token and the token that completes a stop string
are committed, a cancelled request ends within a round, and one `Finished` or `Failed` comes last.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

from jaxfold.runtime.api import MAX_LOGPROBS
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import EngineError
from jaxfold.runtime.api import EngineInfo
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import EngineSnapshot
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import FinishReason
from jaxfold.runtime.api import LabelScores
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import PromptScores
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import Sink
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.api import TokenScore
from jaxfold.runtime.api import default_seed
from jaxfold.runtime.api import token_sha
from jaxfold.runtime.constraints.lane import LaneGuide
from jaxfold.runtime.constraints.lane import allows

Script = Iterable[int] | Callable[[EngineRequest], Iterable[int]]


def score(token: int, top: int) -> TokenScore:
    """The scripted score of a token: it is the second likeliest, after the next id."""
    others = ((token + 1, -0.25), (token, -1.0 - token / 1024), *((place, -9.0) for place in range(2, MAX_LOGPROBS)))
    return TokenScore(-1.0 - token / 1024, others[:top])


@dataclass
class _Job:
    request: EngineRequest
    sink: Sink
    ids: Iterator[int]
    submitted: float
    started: float | None = None
    first_token: float | None = None
    committed: list[int] = field(default_factory=list)
    scored: bool = False
    guide: LaneGuide | None = None
    rounds: int = 0
    cancelled: bool = False
    used_up: bool = False


class ScriptedEngine:
    """Replays `script`: ids for every request, or a function that gives them (an endless iterator is fine).

    A reply whose script is used up ends with reason "stop"; with `hang` it waits until it is cancelled instead.  A
    round commits up to `tokens_per_event` ids of each of at most `lanes` running requests and then waits `delay_s`
    seconds.  `fail_after` makes every reply fail after that many ids, `refuse` is raised by the next `submit` and by
    all after it until it is None again.  `cached_tokens` is what the stats say was reused of each prompt.  `requests`
    and `cancelled` record what came in.  All switches may be changed while it runs.

    Log-probabilities come from `score`, which anybody who knows the token can compute.  Where a request has a guide
    that does not allow what the script says, an id that it allows comes instead: one that ends something if possible.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        vocab_size: int = 512,
        context_length: int = 1 << 16,
        lanes: int = 8,
        max_queue: int = 256,
        tokens_per_event: int = 1,
        delay_s: float = 0.0,
        ready: bool = True,
        hang: bool = False,
        fail_after: int | None = None,
        cached_tokens: int = 0,
    ) -> None:
        self.script = script
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.lanes = lanes
        self.max_queue = max_queue
        self.tokens_per_event = tokens_per_event
        self.delay_s = delay_s
        self.ready = ready
        self.hang = hang
        self.fail_after = fail_after
        self.refuse: EngineError | None = None
        self.cached_tokens = cached_tokens
        self.requests: list[EngineRequest] = []
        self.cancelled: list[str] = []
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._totals = dict.fromkeys(("requests", "prompt", "cached", "completion", "rounds", "cancelled", "failed"), 0)
        self._seconds = {"prefill": 0.0, "decode": 0.0}
        self._draining = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="scripted-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model_type="scripted",
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            lanes=self.lanes,
            page_size=64,
            total_pages=self.lanes * self.context_length // 64,
            exactness="A",
            weight_dtype="f32",
            compute_dtype="f32",
            kv_dtype="f32",
            weight_bytes=0,
            cache_bytes=0,
            platform="cpu",
            programs=0,
        )

    def snapshot(self) -> EngineSnapshot:
        with self._changed:
            used = [len(job.request.prompt_ids) + len(job.committed) for job in self._running]
            return EngineSnapshot(
                ready=self.ready and not self._draining and not self._closed,
                healthy=not self._closed,
                requests_running=len(self._running),
                requests_waiting=len(self._waiting),
                lanes_decoding=len(self._running),
                lanes_prefilling=0,
                requests_total=self._totals["requests"],
                prompt_tokens_total=self._totals["prompt"],
                cached_tokens_total=self._totals["cached"],
                completion_tokens_total=self._totals["completion"],
                generation_tokens_running=sum(len(job.committed) for job in self._running),
                prefill_seconds_total=self._seconds["prefill"],
                decode_seconds_total=self._seconds["decode"],
                rounds_total=self._totals["rounds"],
                chunks_total=self._totals["requests"],
                drafted_total=0,
                accepted_total=0,
                preemptions_total=0,
                cancelled_total=self._totals["cancelled"],
                failed_total=self._totals["failed"],
                compiles_after_ready=0,
                pages_used=sum(-(-tokens // 64) for tokens in used),
                pages_cached=0,
                pages_total=self.lanes * self.context_length // 64,
                lane_kv_usage={lane: tokens / self.context_length for lane, tokens in enumerate(used)},
            )

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        with self._changed:
            if self.refuse is not None:
                raise self.refuse
            if not self.ready or self._draining or self._closed:
                raise NotReadyError("the engine is not ready")
            size = len(request.prompt_ids) + request.max_tokens
            if size > self.context_length:
                raise CapacityError(f"{size} tokens do not fit the context of {self.context_length}")
            if len(self._waiting) >= self.max_queue and not request.accepted:
                raise QueueFullError(f"{self.max_queue} requests are waiting already")
            ids = self.script(request) if callable(self.script) else self.script
            job = _Job(request, sink, iter(ids), time.monotonic())
            self.requests.append(request)
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            self.cancelled.append(request_id)
            for job in (*self._waiting, *self._running):
                if job.request.request_id == request_id:
                    job.cancelled = True
            self._changed.notify_all()

    def drain(self) -> None:
        with self._changed:
            self._draining = True

    def close(self, timeout_s: float = 10.0) -> None:
        with self._changed:
            self._closed = True
            for job in (*self._waiting, *self._running):
                job.cancelled = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def wait_idle(self, timeout_s: float = 10.0) -> bool:
        """Wait until nothing runs or waits; False after `timeout_s` seconds. For tests."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._running), timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed and not (self._waiting or self._running):
                    return
                self._admit()
                jobs = list(self._running)
                self._totals["rounds"] += 1
            for job in jobs:
                self._round(job)
            if self.delay_s:
                time.sleep(self.delay_s)

    def _has_work(self) -> bool:
        admit = self._waiting and (len(self._running) < self.lanes or any(job.cancelled for job in self._waiting))
        # A hanging reply has nothing to do until somebody cancels it.
        return (
            bool(admit)
            or self._closed
            or any(not (self.hang and job.used_up) or job.cancelled for job in self._running)
        )

    def _admit(self) -> None:
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
            self._running.append(job)  # its first round ends it
        while self._waiting and len(self._running) < self.lanes:
            self._running.append(self._waiting.popleft())

    def _round(self, job: _Job) -> None:
        request = job.request
        if job.cancelled:
            self._end(job, "cancelled")
            return
        job.rounds += 1
        job.started = job.started or time.monotonic()
        ids: list[int] = []
        self._score_prompt(job)
        reason: FinishReason | None = None if request.max_tokens or self._fails(job) else "length"
        while reason is None and len(ids) < self.tokens_per_event and not self._fails(job):
            token_id = self._allowed(job, next(job.ids, None))
            if token_id is None:
                job.used_up = True
                reason = None if self.hang else "stop"
                break
            ids.append(token_id)
            job.committed.append(token_id)
            stopped = request.stop_check is not None and request.stop_check(token_id)
            if stopped or token_id in request.stop_ids:
                reason = "stop"
            elif len(job.committed) >= request.max_tokens:
                reason = "length"
        if ids:
            job.first_token = job.first_token or time.monotonic()
            job.sink(Tokens(tuple(ids), self._scores(request, ids)))
        if reason is not None:
            self._end(job, reason)
        elif self._fails(job):
            self._end(job, None)

    def _allowed(self, job: _Job, token_id: int | None) -> int | None:
        """The scripted token, or one that the guide allows; a script that is used up goes on where the guide wants."""
        guide = job.request.guide
        if guide is None:
            return token_id
        if job.guide is None:
            job.guide = LaneGuide(guide, -(-self.vocab_size // 32))
        mask = job.guide.masks()[1][0]
        if token_id is None and (mask is None or any(allows(mask, end) for end in guide.end_ids)):
            return None
        if mask is not None and (token_id is None or not allows(mask, token_id)):
            likely = (*guide.end_ids, *b'"}]', *range(33, self.vocab_size), *range(33))
            token_id = next(token for token in likely if allows(mask, token))
        assert token_id is not None and job.guide.accept(token_id)
        return token_id

    def _score_prompt(self, job: _Job) -> None:
        request = job.request
        if request.score_prompt and not job.scored:
            rest = request.prompt_ids[1:]
            for part in (rest[:2], rest[2:]):
                if part:
                    job.sink(PromptScores(tuple(score(token, request.logprobs or 0) for token in part)))
        if request.labels and not job.scored:
            job.sink(LabelScores(tuple(score(label, 0).logprob for label in request.labels)))
        job.scored = True

    def _scores(self, request: EngineRequest, ids: Iterable[int]) -> tuple[TokenScore, ...]:
        return () if request.logprobs is None else tuple(score(token, request.logprobs) for token in ids)

    def _fails(self, job: _Job) -> bool:
        return self.fail_after is not None and len(job.committed) >= self.fail_after

    def _end(self, job: _Job, reason: FinishReason | None) -> None:
        """Leave the lane and send the last event; a reason of None is a failure."""
        stats = self._stats(job)
        with self._changed:
            self._running.remove(job)
            self._totals["requests"] += 1
            self._totals["prompt"] += stats.prompt_tokens
            self._totals["cached"] += stats.cached_tokens
            self._totals["completion"] += stats.completion_tokens
            self._totals["cancelled"] += reason == "cancelled"
            self._totals["failed"] += reason is None
            self._seconds["prefill"] += stats.prefill_s
            self._seconds["decode"] += stats.decode_s
            self._changed.notify_all()
        job.sink(Failed("the script says so") if reason is None else Finished(reason, stats))

    def _stats(self, job: _Job) -> RequestStats:
        now = time.monotonic()
        started, first = job.started or now, job.first_token
        prompt = job.request.prompt_ids
        seed = job.request.sampling.seed
        return RequestStats(
            prompt_tokens=len(prompt),
            completion_tokens=len(job.committed),
            cached_tokens=min(self.cached_tokens, len(prompt)),
            queue_s=started - job.submitted,
            prefill_s=(first or now) - started,
            decode_s=now - (first or now),
            time_to_first_token_s=None if first is None else first - job.submitted,
            rounds=job.rounds,
            drafted=0,
            accepted=0,
            preemptions=0,
            token_sha=token_sha(job.committed),
            seed=default_seed(prompt) if seed is None else seed,
        )
