"""The engine's state machine, single-threaded: admit, dispatch a round, collect its tokens, finish, preempt.

It composes the managers: the queue (who waits), the lanes (who runs), their pages and prefix tree, the decode share
(what runs next) and the device (what is computed). Only the queue is shared with other threads, under `lock`.
"""

import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import ExactnessLevel
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import FinishReason
from jaxfold.runtime.api import LabelScores
from jaxfold.runtime.api import PromptScores
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.api import TokenScore
from jaxfold.runtime.constraints.lane import LaneGuide
from jaxfold.runtime.constraints.lane import Mask
from jaxfold.runtime.counters import Counters
from jaxfold.runtime.device import Chunk
from jaxfold.runtime.device import Device
from jaxfold.runtime.device import Drawing
from jaxfold.runtime.device import Found
from jaxfold.runtime.device import Round
from jaxfold.runtime.drafting.planner import Planner
from jaxfold.runtime.lanes import Job
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.lanes import LanePages
from jaxfold.runtime.queue import RequestQueue
from jaxfold.runtime.schedule import DecodeShare
from jaxfold.runtime.schedule import choose_victim
from jaxfold.runtime.schedule import pick_chunk
from jaxfold.runtime.table import StepShape

LOG = logging.getLogger(__name__)
GROWTH = 256
"""Tokens of reply that must find room beside the running lanes before a request is admitted."""
DIVERGED = "the reply could not be repeated after it was interrupted"
STEP_FAILED = "the engine failed while generating this reply"
GUIDE_FAILED = "the grammar of this reply could not be followed"


class Core:
    """See the module. `clock` gives seconds; `level` says what may be reused (see `runtime.api.ExactnessLevel`).

    `planner` decides about drafts; None: nothing is drafted.
    """

    def __init__(
        self,
        device: Device,
        pages: LanePages,
        queue: RequestQueue[Job],
        share: DecodeShare,
        level: ExactnessLevel,
        clock: Callable[[], float],
        planner: Planner | None = None,
    ) -> None:
        self.device = device
        self.pages = pages
        self.queue = queue
        self.share = share
        self.level = level
        self.clock = clock
        self.planner = planner
        self.lock = threading.RLock()
        self.lanes: list[Lane | None] = [None] * device.programs.table.lanes
        self.counters = Counters()
        self._collected = 0.0
        self._hold = False

    @property
    def running(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane is not None]

    # Admission

    def admit(self) -> None:
        """Move waiting requests into free lanes while they fit; a background lane yields to a foreground request."""
        while True:
            with self.lock:
                job = self._next_job()
            if job is None:
                return
            try:
                admitted = self._open(job)
            except Exception:
                # It is in no queue and in no lane now, so nobody else would tell its caller.
                if not any(lane.job is job for lane in self.running):
                    self._ended(job, Failed(STEP_FAILED))
                raise
            if not admitted:
                return

    def _open(self, job: Job) -> bool:
        """Give the job a free lane, or put it back where there is no room for it. Returns whether it has a lane."""
        lane = self.pages.open(job, self.lanes.index(None))
        wanted = lane.tokens_left + min(job.request.max_tokens, GROWTH)
        if self.running and (self._hold or not self.pages.can_open(wanted)):
            self.pages.close(lane)
            with self.lock:
                self.queue.push_front(job)
            return False
        self._start(lane)
        return True

    def _next_job(self) -> Job | None:
        if None in self.lanes:
            due = self.queue.due
            job = self.queue.next()
            if job is not None and job.background and due:
                job.protected = True
            return job
        if not self.queue.foreground_waiting:
            return None
        victim = choose_victim(self.lanes)
        if victim is None:
            return None
        lane = self.lanes[victim]
        assert lane is not None
        self.preempt(lane)
        return self.queue.next(foreground_only=True)

    def _start(self, lane: Lane) -> None:
        job, now = lane.job, self.clock()
        self.lanes[lane.slot] = lane
        if job.started is None:
            job.started = now
        if job.cached_tokens is None:
            job.cached_tokens = lane.filled
        if self.planner is not None:
            lane.drafts = self.planner.open(lane)
        self.device.begin(lane)
        if job.request.guide is not None:
            try:
                lane.guide = LaneGuide(job.request.guide, self.device.programs.mask_words)
            except Exception:
                self._guide_failed(lane)

    # Dispatch

    def dispatch(self) -> Round | None:
        """Start the next round of work, None if there is none."""
        for lane in self.running:
            if lane.drafts is not None:
                lane.drafts.absorb(())
        fills = [lane for lane in self.running if lane.filling]
        decoding = [lane for lane in self.running if lane.can_decode]
        if not fills:
            self.share.reset()
            return self._dispatch(decoding, None) if decoding else None
        if decoding and self.share.may_round():
            return self._dispatch(decoding, None)
        lane = fills[pick_chunk(fills, self.share.whole_prompts)]
        alone = self.share.whole_prompts or lane.job.request.score_prompt
        return self._dispatch([] if alone else decoding, lane)

    def should_wait(self) -> bool:
        """Whether the tokens of the round under way should be read before the next one is planned.

        They should where their lanes may then verify drafts, and must where a guide has to see them. Otherwise the next
        round need not wait for them.
        """
        if any(lane.guided and lane.can_decode and lane.issued > lane.committed for lane in self.running):
            return True
        if self.planner is None or (any(lane.filling for lane in self.running) and not self.share.may_round()):
            return False
        lanes = [lane for lane in self.running if lane.can_decode]
        return bool(lanes) and self.planner.choose(self.planner.proposals(lanes)) is not None

    def _dispatch(self, decoding: list[Lane], filling: Lane | None) -> Round | None:
        chunk = None
        # The oldest first: whoever comes later gives way when pages run out.
        for lane in sorted([*decoding, *([filling] if filling else [])], key=_seniority):
            if lane.finished:
                continue
            if lane is not filling:
                if self._room(lane, lane.position + 1):
                    self._masks(lane)
                continue
            length = min(lane.tokens_left, self._chunk_limit(lane, shared=bool(decoding)))
            last = length == lane.tokens_left
            chunk = Chunk(lane, lane.filled, length, last, self._masks(lane) if last else ())
            if not self._room(lane, lane.filled + length):
                chunk = None
        if chunk is not None and chunk.lane.finished:
            chunk = None
        decoding = [lane for lane in decoding if not lane.finished]
        if not decoding and chunk is None:
            return None
        shape, drawings = self._shaped(decoding, chunk, shared=bool(decoding))
        done = self.device.dispatch(drawings, chunk, shape, self.clock())
        for lane in decoding:
            lane.issued += 1
        if chunk is not None:
            chunk.lane.filled += chunk.length
            chunk.lane.issued += chunk.last
            self.counters.chunks += 1
            if chunk.last:
                self.pages.remember(chunk.lane, chunk.lane.job.request.prompt_ids)
        self.counters.rounds += bool(done.drawn)
        return done

    def _masks(self, lane: Lane) -> tuple[Mask | None, ...]:
        """The mask of a lane's next token. A guide that fails ends its reply."""
        if not lane.guided or lane.guide is None:
            return ()
        try:
            return tuple(lane.guide.masks()[1])
        except Exception:
            self._guide_failed(lane)
            return ()

    def _guide_failed(self, lane: Lane) -> None:
        LOG.exception("the guide of request %s failed", lane.job.request_id)
        self.fail(lane, GUIDE_FAILED)

    def _drawing(self, lane: Lane, drafts: tuple[int, ...] = (), source: str = "") -> Drawing:
        """What the lane draws; drafts that its guide does not allow are left out."""
        if not lane.guided or lane.guide is None:
            return Drawing(lane, drafts, source)
        kept, masks = lane.guide.masks(drafts)
        return Drawing(lane, drafts[:kept], source if kept else "", tuple(masks))

    def _chunk_limit(self, lane: Lane, shared: bool) -> int:
        """Most tokens of a prompt in one step: few while anybody else waits for the step to end."""
        table = self.device.programs.table
        if lane.job.request.score_prompt:
            return table.scoring.chunk
        busy = shared or len(self.queue) > 0 or sum(lane.filling for lane in self.running) > 1
        return table.shared_chunks[-1] if busy and table.shared_chunks else table.chunks[-1]

    def _shaped(
        self, decoding: Sequence[Lane], chunk: Chunk | None, shared: bool
    ) -> tuple[StepShape, Sequence[Drawing]]:
        """The program of a round, and what its lanes draw."""
        table = self.device.programs.table
        plain = [self._drawing(lane) for lane in decoding]
        if chunk is not None:
            return table.chunk_shape(chunk.length, shared), plain
        return self._window(decoding) or (StepShape(table.decode_width(len(decoding)), 0), plain)

    def _window(self, lanes: Sequence[Lane]) -> tuple[StepShape, Sequence[Drawing]] | None:
        """A round that verifies drafts, where that is expected to pay."""
        # Drafts follow the last token, so that one must be known; `should_wait` has seen to it where it matters.
        if self.planner is None or any(lane.issued > lane.committed for lane in lanes):
            return None
        proposals = self.planner.proposals(lanes)
        shape = self.planner.choose(proposals)
        if shape is None:
            return None
        drawings = []
        for lane, found in zip(lanes, self.planner.made(lanes, proposals, shape.columns - 1), strict=True):
            drafts = () if found is None else found.tokens
            # Nobody gives way to a draft.
            if found is None or not self.pages.grow(lane, lane.position + 1 + len(drafts)):
                drawings.append(self._drawing(lane))
            else:
                drawings.append(self._drawing(lane, drafts, found.source))
        return (shape, drawings) if any(drawing.drafts for drawing in drawings) else None

    def _room(self, lane: Lane, tokens: int) -> bool:
        """Pages for the lane's first `tokens` tokens, taken from junior lanes if need be. False: it was preempted."""
        self.pages.drop_behind(lane, lane.position)
        while not self.pages.grow(lane, tokens):
            # Until a reply ends nobody is admitted, or the one that gave way would come straight back.
            self._hold = True
            victim = max(self.running, key=_seniority)
            self.preempt(victim)
            if victim is lane:
                return False
        return True

    # Collect

    def collect(self, round_: Round) -> None:
        """Wait for a dispatched round and commit its tokens."""
        found = round_.wait()
        now = self.clock()
        seconds = now - max(round_.dispatched, self._collected)
        self._collected = now
        if round_.chunk is not None:
            self._emit_prompt(round_.chunk, round_.prompt_scores())
            self.share.chunk_done(seconds)
            if round_.chunk.last and not round_.chunk.lane.finished and round_.chunk.lane.job.prefilled is None:
                round_.chunk.lane.job.prefilled = now
        else:
            if self.planner is not None:
                self.planner.costs.saw(round_.shape, seconds)
            if any(lane.filling for lane in self.running):
                self.share.spent(seconds)
        for one in found:
            # A lane that ended meanwhile drew one token too many: it is nobody's.
            if not one.drawing.lane.finished:
                one.drawing.lane.issued += len(one.tokens) - 1
                self._commit(one, now)

    def _emit_prompt(self, chunk: Chunk, scores: Sequence[TokenScore]) -> None:
        """Send the scores of the tokens after a chunk's; after a preemption only those that were not sent before."""
        lane, job = chunk.lane, chunk.lane.job
        fresh = scores[max(job.scored - chunk.start, 0) :]
        job.scored += len(fresh)
        if fresh and not lane.finished:
            self._emit(lane, PromptScores(tuple(fresh)))

    def _commit(self, found: Found, now: float) -> None:
        """Enter a lane's new tokens in order; what follows an end is dropped."""
        drawing, tokens = found.drawing, found.tokens
        lane, job = drawing.lane, drawing.lane.job
        job.rounds += 1
        if found.labels and not job.labelled:
            job.labelled = True
            self._emit(lane, LabelScores(found.labels))
        if not job.request.max_tokens:
            # Only scores were asked for: what was drawn beside them is nobody's.
            if not lane.finished:
                self.finish(lane, "length")
            return
        fresh: list[int] = []
        kept, ended = 0, None
        while ended is None and kept < len(tokens):
            token = tokens[kept]
            kept += 1
            lane.committed += 1
            if lane.guide is not None and not lane.guide.accept(token):
                self.fail(lane, GUIDE_FAILED)
                return
            if lane.committed <= len(job.sent):
                if job.sent[lane.committed - 1] != token:
                    self.fail(lane, DIVERGED)
                    return
                continue
            job.sent.append(token)
            fresh.append(token)
            ended = self._ending(lane, token)
        self._absorb(drawing, tokens, kept)
        if fresh:
            if job.first_token is None:
                job.first_token = now
            # What was sent before an interruption comes first in the round.
            self._emit(lane, Tokens(tuple(fresh), found.scores[kept - len(fresh) : kept]))
        if ended is not None and not lane.finished:
            self.finish(lane, ended)

    def _absorb(self, drawing: Drawing, tokens: list[int], kept: int) -> None:
        """Tell the lane's proposers what became of their drafts and how the reply goes on, and count it."""
        lane, drafted = drawing.lane, len(drawing.drafts)
        if drafted:
            accepted = min(kept, len(tokens) - 1)
            lane.job.count_drafts(drawing.source, drafted, accepted)
            self.counters.count_drafts(drawing.source, drafted, accepted)
        if lane.drafts is not None:
            if drafted:
                lane.drafts.judge(drawing.source, drafted, len(tokens) - 1)
            lane.drafts.absorb(tokens[:kept])

    def _ending(self, lane: Lane, token: int) -> FinishReason | None:
        """Why the reply ends with its latest token, None if it goes on."""
        request = lane.job.request
        if token in request.stop_ids or (request.stop_check is not None and self._stops(lane, token)):
            return "stop"
        return "length" if lane.committed >= request.max_tokens else None

    def _stops(self, lane: Lane, token: int) -> bool:
        check = lane.job.request.stop_check
        assert check is not None
        try:
            return check(token)
        except Exception:
            LOG.exception("stop_check of request %s raised; ending the reply", lane.job.request_id)
            return True

    # Endings

    def finish(self, lane: Lane, reason: FinishReason) -> None:
        """End a running reply and free its lane; whole pages of what it computed stay in the prefix tree."""
        self._leave(lane)
        self._hold = False
        self._ended(lane.job, Finished(reason, lane.job.stats(self.clock())))

    def fail(self, lane: Lane, message: str) -> None:
        """End a running reply with an error. Nothing of it is kept."""
        lane.finished = True
        self.pages.close(lane)
        self.lanes[lane.slot] = None
        self._hold = False
        self._ended(lane.job, Failed(message))

    def preempt(self, lane: Lane) -> None:
        """Put a running request back into the queue; it will be drawn again from its prompt and checked."""
        self._leave(lane)
        lane.job.preemptions += 1
        self.counters.preemptions += 1
        with self.lock:
            self.queue.push_front(lane.job)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """End these requests, waiting or running; unknown ids are ignored."""
        wanted = set(request_ids)
        for request_id in sorted(wanted):
            with self.lock:
                job = self.queue.cancel(request_id)
            if job is not None:
                self._ended(job, Finished("cancelled", job.stats(self.clock())))
        for lane in self.running:
            if lane.job.request_id in wanted:
                self.finish(lane, "cancelled")

    def fail_running(self, message: str) -> None:
        """After a failed step: its donated arrays are gone, so every running reply and cached page is lost."""
        for lane in self.running:
            self.fail(lane, message)
        self.pages.reset()
        self.device.rebuild()
        if self.planner is not None:
            self.planner.rebuild()
        self.share.reset()

    def check_integrity(self) -> None:
        """Raise IntegrityError if queue, pages or lanes contradict each other."""
        with self.lock:
            self.queue.check_integrity()
        self.pages.check_integrity(self.running)

    def _leave(self, lane: Lane) -> None:
        lane.finished = True
        request = lane.job.request
        known = request.prompt_ids[: lane.filled]
        if self.level == "A" and not lane.tokens_left:
            # The last token's keys are not in the cache: they would be written by the step after it.
            known = (*known, *lane.job.sent[: max(lane.committed - 1, 0)])
        self.pages.remember(lane, known)
        self.pages.close(lane)
        self.lanes[lane.slot] = None

    def _ended(self, job: Job, event: Finished | Failed) -> None:
        if isinstance(event, Finished):
            self.counters.add(event.stats)
            self.counters.cancelled += event.reason == "cancelled"
        else:
            self.counters.failed += 1
        try:
            job.sink(event)
        except Exception:
            LOG.exception("the sink of request %s raised at its end", job.request_id)

    def _emit(self, lane: Lane, event: EngineEvent) -> None:
        try:
            lane.job.sink(event)
        except Exception:
            LOG.exception("the sink of request %s raised; cancelling it", lane.job.request_id)
            self.finish(lane, "cancelled")


def _seniority(lane: Lane) -> tuple[bool, int]:
    """Sort key: foreground before background, then arrival."""
    return lane.background, lane.arrival
