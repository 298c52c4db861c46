"""The drafts of one reply: its proposers, how well each has done, and which of them is asked."""

from collections.abc import Sequence
from dataclasses import replace

from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.base import Proposer
from jaxfold.runtime.drafting.record import Record


class LaneDrafts:
    """The proposers of one running reply."""

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._proposers = tuple(proposers)
        self._records = {proposer.name: Record() for proposer in proposers}
        self._count = 0

    def absorb(self, tokens: Sequence[int]) -> None:
        """The reply goes on with these committed tokens."""
        self._count += len(tokens)
        for proposer in self._proposers:
            proposer.absorb(tokens)

    def propose(self, limit: int, ahead: int = 0) -> Proposal | None:
        """The proposal that is expected to bring most, its confidence corrected by what became of earlier ones."""
        best: Proposal | None = None
        for proposer in self._proposers:
            record = self._records[proposer.name]
            if record.parked(self._count):
                continue
            found = proposer.propose(limit, ahead)
            if found is None:
                continue
            found = replace(found, confidence=record.rate(found.confidence, self._count))
            if best is None or found.expected(limit) > best.expected(limit):
                best = found
        return best

    def judge(self, source: str, drafted: int, accepted: int) -> None:
        """What became of a proposal. Call it before its tokens are absorbed."""
        self._records[source].saw(drafted, accepted, self._count)
