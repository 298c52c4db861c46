"""Running replies: one `Lane` per request that holds a slot, and the pages it uses."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import numpy as np

from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import Sink
from jaxfold.runtime.api import token_sha
from jaxfold.runtime.constraints.lane import LaneGuide
from jaxfold.runtime.drafting.lane import LaneDrafts
from jaxfold.runtime.pages import SCRATCH_PAGE
from jaxfold.runtime.pages import PagePool
from jaxfold.runtime.prefix_tree import GroupSpec
from jaxfold.runtime.prefix_tree import PrefixTree
from jaxfold.runtime.prefix_tree import pages_behind
from jaxfold.runtime.sampling.rows import PreparedSampling
from jaxfold.runtime.table import CHUNKS


@dataclass(eq=False)
class Job:
    """A request's whole life, across preemptions: what was asked, what was sent, when what happened (seconds).

    `sent` holds the committed tokens; after a preemption the reply is drawn again from its prompt and each token is
    compared with `sent` instead of being sent twice. `scored` counts the prompt's scores that were sent, `labelled`
    says that those of the labels were. `drafts` counts drafted and accepted tokens by proposer.
    """

    request: EngineRequest
    sink: Sink
    seed: int
    prepared: PreparedSampling
    arrival: int
    submitted: float
    sent: list[int] = field(default_factory=list)
    scored: int = 0
    labelled: bool = False
    started: float | None = None
    prefilled: float | None = None
    first_token: float | None = None
    cached_tokens: int | None = None
    rounds: int = 0
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    preemptions: int = 0
    protected: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def background(self) -> bool:
        return self.request.background

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    def count_drafts(self, source: str, drafted: int, accepted: int) -> None:
        """Note that a round verified `drafted` tokens of this proposer and kept `accepted` of them."""
        before = self.drafts.get(source, (0, 0))
        self.drafts[source] = (before[0] + drafted, before[1] + accepted)

    def stats(self, now: float) -> RequestStats:
        started = now if self.started is None else self.started
        prefilled = now if self.prefilled is None else self.prefilled
        first = self.first_token
        return RequestStats(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.sent),
            cached_tokens=self.cached_tokens or 0,
            queue_s=started - self.submitted,
            prefill_s=max(prefilled - started, 0.0),
            decode_s=max(now - prefilled, 0.0),
            time_to_first_token_s=None if first is None else first - self.submitted,
            rounds=self.rounds,
            drafted=sum(drafted for drafted, _ in self.drafts.values()),
            accepted=sum(accepted for _, accepted in self.drafts.values()),
            preemptions=self.preemptions,
            token_sha=token_sha(self.sent),
            seed=self.seed,
            drafts=dict(self.drafts),
        )


@dataclass(eq=False)
class Lane:
    """One running reply.

    Invariant: `0 <= filled <= prompt_tokens`; draws are issued only once `filled == prompt_tokens`;
    `committed <= issued <= max(max_tokens, 1)`. Tokens whose keys are in the cache: `filled + max(issued - 1, 0)`;
    after a round with drafts `issued` is counted up when it is known how many were right. `drafts` is None where none
    are made.
    """

    job: Job
    slot: int
    pages: dict[str, list[int | None]]
    tables: dict[str, np.ndarray]
    filled: int = 0
    issued: int = 0
    committed: int = 0
    released: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    passed: int = 0
    drafts: LaneDrafts | None = None
    guide: LaneGuide | None = None

    @property
    def guided(self) -> bool:
        """Whether its next draw depends on its last token."""
        return self.guide is not None and not self.guide.free

    @property
    def background(self) -> bool:
        return self.job.background

    @property
    def protected(self) -> bool:
        return self.job.protected

    @property
    def arrival(self) -> int:
        return self.job.arrival

    @property
    def tokens_left(self) -> int:
        return self.job.prompt_tokens - self.filled

    @property
    def filling(self) -> bool:
        return not self.finished and self.tokens_left > 0

    @property
    def can_decode(self) -> bool:
        """Whether another draw may be issued for it."""
        return not self.finished and not self.tokens_left and self.issued < self.job.request.max_tokens

    @property
    def position(self) -> int:
        """Absolute position of the next row to run: the next prompt token, or the last drawn token."""
        return self.filled if self.tokens_left else self.job.prompt_tokens + self.issued - 1


class LanePages:
    """Gives lanes their pages and takes them back; the tree and the pools are its only state.

    Args:
        groups: cache group -> pool and window.
        page_size: tokens.
        widths: cache group -> table width in pages.
        reuse: whether the prefix tree is used at all.
    """

    def __init__(self, groups: Mapping[str, GroupSpec], page_size: int, widths: Mapping[str, int], reuse: bool) -> None:
        self.groups = groups
        self.page_size = page_size
        self.widths = widths
        self.reuse = reuse
        self.tree = PrefixTree(page_size, groups)

    def reset(self) -> None:
        """Forget every page and every prefix: for after a failure, when no lane is left and the books may be wrong."""
        pools = {group: PagePool(spec.pool.total + 1) for group, spec in self.groups.items()}
        self.groups = {group: GroupSpec(pools[group], spec.window) for group, spec in self.groups.items()}
        self.tree = PrefixTree(self.page_size, self.groups)

    def open(self, job: Job, slot: int) -> Lane:
        """A lane for `job` with the pages of the longest prompt prefix that is in the tree."""
        pages: dict[str, list[int | None]] = {group: [] for group in self.groups}
        filled = 0
        # What is reused is not computed, so it cannot be scored.
        if self.reuse and not job.request.score_prompt:
            match = self.tree.match(job.request.prompt_ids, job.request.cache_salt)
            pages, filled = match.pages, match.length
        tables = {group: np.full(width, SCRATCH_PAGE, np.int32) for group, width in self.widths.items()}
        lane = Lane(job, slot, pages, tables, filled=filled, released=dict.fromkeys(self.groups, 0))
        for group, found in pages.items():
            tables[group][: len(found)] = [SCRATCH_PAGE if page is None else page for page in found]
            lane.released[group] = sum(page is None for page in found)
        return lane

    def can_open(self, tokens: int) -> bool:
        """Make sure that pages for `tokens` more tokens are free, by dropping cached prefixes where need be.

        False: there is no room, and nothing was dropped.
        """
        needs = {group: self.needed(group, tokens) for group in self.groups}
        if not all(self._could_free(group, pages) for group, pages in needs.items()):
            return False
        return all(self._make_room(group, pages) for group, pages in needs.items())

    def needed(self, group: str, tokens: int) -> int:
        """Pages that `tokens` tokens of one lane hold at most at once in this group."""
        pages = -(-tokens // self.page_size)
        window = self.groups[group].window
        return pages if window is None else min(pages, -(-window // self.page_size) + 2 + CHUNKS[-1] // self.page_size)

    def grow(self, lane: Lane, tokens: int) -> bool:
        """Make sure that the lane has pages for its first `tokens` tokens. False: there is no room."""
        count = -(-tokens // self.page_size)
        for group in self.groups:
            more = count - len(lane.pages[group])
            if more <= 0:
                continue
            if not self._make_room(group, more):
                return False
            fresh = self.groups[group].pool.allocate(more)
            first = len(lane.pages[group])
            lane.pages[group].extend(fresh)
            lane.tables[group][first:count] = fresh
        return True

    def drop_behind(self, lane: Lane, tokens: int) -> None:
        """Release the pages of window groups that no row at or after `tokens` will read."""
        for group, spec in self.groups.items():
            behind = min(pages_behind(tokens, spec.window, self.page_size), len(lane.pages[group]))
            for i in range(lane.released[group], behind):
                page = lane.pages[group][i]
                if page is not None:
                    spec.pool.release([page])
                    lane.pages[group][i] = None
                    lane.tables[group][i] = SCRATCH_PAGE
            lane.released[group] = max(lane.released[group], behind)

    def remember(self, lane: Lane, tokens: Sequence[int]) -> None:
        """Offer the lane's whole pages over `tokens` (all of them in the cache) to the prefix tree."""
        whole = len(tokens) // self.page_size
        if self.reuse and whole:
            offered = {group: pages[:whole] for group, pages in lane.pages.items()}
            self.tree.insert(tokens[: whole * self.page_size], offered, lane.job.request.cache_salt)

    def close(self, lane: Lane) -> None:
        """Give the lane's pages back."""
        for group, pages in lane.pages.items():
            self.groups[group].pool.release([page for page in pages if page is not None])
            lane.pages[group] = []

    def used(self) -> tuple[int, int, int]:
        """Pages in use (cached prefixes included), pages that the tree holds, and pages in all; over all groups."""
        pools = [spec.pool for spec in self.groups.values()]
        cached = sum(self.tree.cached_pages(group) for group in self.groups)
        return sum(p.used_count for p in pools), cached, sum(p.total for p in pools)

    def check_integrity(self, lanes: Sequence[Lane]) -> None:
        """Every page is owned exactly as often as its reference count says.

        Raises:
            IntegrityError: it is not.
        """
        self.tree.check_integrity()
        for group, spec in self.groups.items():
            held = [[page for page in lane.pages[group] if page is not None] for lane in lanes]
            spec.pool.check_integrity([*held, *self.tree.owners(group)])

    def _could_free(self, group: str, pages: int) -> bool:
        pool = self.groups[group].pool
        return pool.can_allocate(pages) or pool.free_count + self.tree.evictable(group) >= pages

    def _make_room(self, group: str, pages: int) -> bool:
        pool = self.groups[group].pool
        return pool.can_allocate(pages) or (self.tree.evict(group, pages) and pool.can_allocate(pages))
