"""Whether a round verifies drafts: only where the tokens expected of it outweigh what its wider step costs."""

from collections.abc import Sequence
from dataclasses import replace

from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.base import Proposer
from jaxfold.runtime.drafting.copy import CopyProposer
from jaxfold.runtime.drafting.costs import RoundCosts
from jaxfold.runtime.drafting.drafter import Drafter
from jaxfold.runtime.drafting.lane import LaneDrafts
from jaxfold.runtime.drafting.replay import ReplayProposer
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import Table

MARGIN = 1.05
"""How much faster than plain decoding a verify round must be expected to be: it gives up the overlap too."""


class Planner:
    """Makes the proposers of each reply and decides when their drafts are worth a round."""

    def __init__(self, table: Table, costs: RoundCosts, drafter: Drafter | None = None) -> None:
        self._table = table
        self._drafter = drafter
        self.costs = costs

    def open(self, lane: Lane) -> LaneDrafts | None:
        """The drafts of a reply that begins, or begins again; None where it asked for none."""
        job = lane.job
        if not job.request.draft:
            return None
        proposers: list[Proposer] = [ReplayProposer(job.sent), CopyProposer(job.request.prompt_ids)]
        if self._drafter is not None:
            proposers.append(self._drafter.open(lane))
        return LaneDrafts(proposers)

    def proposals(self, lanes: Sequence[Lane]) -> list[Proposal | None]:
        """What each lane's proposers say now, or would say once the token that is on its way is known."""
        most = max((shape.columns for shape in self._table.windows if shape.decode >= len(lanes)), default=1) - 1
        return [self._proposal(lane, most) for lane in lanes]

    def choose(self, proposals: Sequence[Proposal | None]) -> StepShape | None:
        """The window that is expected to bring most tokens a second for these lanes; None: plain decoding is."""
        count = len(proposals)
        promised = sum(found is not None and found.promised for found in proposals)
        best, best_rate = None, MARGIN * count / self.costs.of(StepShape(self._table.decode_width(count), 0))
        for shape in self._table.windows:
            if shape.decode < count:
                continue
            expected = sum(found.expected(shape.columns - 1) for found in proposals if found is not None)
            rate = (count + expected) / (self.costs.of(shape) + self._making(promised, shape.columns - 1))
            if expected and rate > best_rate:
                best, best_rate = shape, rate
        return best

    def made(self, lanes: Sequence[Lane], proposals: Sequence[Proposal | None], most: int) -> list[Proposal | None]:
        """The proposals, cut to `most` tokens, with those that were promised."""
        cut = [None if found is None else replace(found, tokens=found.tokens[:most]) for found in proposals]
        promised = [(i, found) for i, found in enumerate(cut) if found is not None and found.promised]
        if promised and self._drafter is not None:
            count = max(len(found.tokens) for _, found in promised)
            made = self._drafter.make([lanes[i].slot for i, _ in promised], count)
            for (i, found), tokens in zip(promised, made, strict=True):
                cut[i] = replace(found, tokens=tokens[: len(found.tokens)]) if tokens else None
        return cut

    def rebuild(self) -> None:
        """A step has failed and no reply is left: what drafts are made from begins anew."""
        if self._drafter is not None:
            self._drafter.rebuild()

    def _making(self, lanes: int, drafts: int) -> float:
        """Seconds until promised drafts are there."""
        return self._drafter.seconds(lanes, drafts) if lanes and self._drafter is not None else 0.0

    def _proposal(self, lane: Lane, most: int) -> Proposal | None:
        if lane.drafts is None or not lane.can_decode:
            return None
        # A window draws one token more than it has drafts.
        room = lane.job.request.max_tokens - lane.issued - 1
        return lane.drafts.propose(min(most, room), ahead=lane.issued - lane.committed)
