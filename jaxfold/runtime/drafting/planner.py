"""Whether a round verifies drafts: only where the tokens expected of it outweigh what its wider step costs."""

from collections.abc import Sequence

from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.copy import CopyProposer
from jaxfold.runtime.drafting.costs import RoundCosts
from jaxfold.runtime.drafting.lane import LaneDrafts
from jaxfold.runtime.drafting.replay import ReplayProposer
from jaxfold.runtime.lanes import Job
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import Table

MARGIN = 1.05
"""How much faster than plain decoding a verify round must be expected to be: it gives up the overlap too."""


class Planner:
    """Makes the proposers of each reply and decides when their drafts are worth a round."""

    def __init__(self, table: Table, costs: RoundCosts) -> None:
        self._table = table
        self.costs = costs

    def open(self, job: Job) -> LaneDrafts | None:
        """The drafts of a reply that begins, or begins again; None where it asked for none."""
        if not job.request.draft:
            return None
        return LaneDrafts((ReplayProposer(job.sent), CopyProposer(job.request.prompt_ids)))

    def proposals(self, lanes: Sequence[Lane]) -> list[Proposal | None]:
        """What each lane's proposers say now, or would say once the token that is on its way is known."""
        most = max((shape.columns for shape in self._table.windows if shape.decode >= len(lanes)), default=1) - 1
        return [self._proposal(lane, most) for lane in lanes]

    def choose(self, proposals: Sequence[Proposal | None]) -> StepShape | None:
        """The window that is expected to bring most tokens a second for these lanes; None: plain decoding is."""
        count = len(proposals)
        best, best_rate = None, MARGIN * count / self.costs.of(StepShape(self._table.decode_width(count), 0))
        for shape in self._table.windows:
            if shape.decode < count:
                continue
            expected = sum(found.expected(shape.columns - 1) for found in proposals if found is not None)
            rate = (count + expected) / self.costs.of(shape)
            if expected and rate > best_rate:
                best, best_rate = shape, rate
        return best

    def _proposal(self, lane: Lane, most: int) -> Proposal | None:
        if lane.drafts is None or not lane.can_decode:
            return None
        # A window draws one token more than it has drafts.
        room = lane.job.request.max_tokens - lane.issued - 1
        return lane.drafts.propose(min(most, room), ahead=lane.issued - lane.committed)
