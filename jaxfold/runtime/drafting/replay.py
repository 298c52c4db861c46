"""Replays: a reply that was interrupted is drawn again from its prompt, so its next tokens are known already."""

from collections.abc import Sequence

from jaxfold.runtime.drafting.base import Proposal


class ReplayProposer:
    """Proposes what was already sent. Each token is still drawn and compared, only sooner."""

    name = "replay"

    def __init__(self, sent: Sequence[int]) -> None:
        self._sent = tuple(sent)
        self._done = 0

    def absorb(self, tokens: Sequence[int]) -> None:
        """See `Proposer.absorb`."""
        self._done += len(tokens)

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        """See `Proposer.propose`."""
        first = self._done + ahead
        tokens = self._sent[first : first + max(limit, 0)]
        return Proposal(self.name, tokens, 0.99) if tokens else None
