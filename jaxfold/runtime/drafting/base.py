"""What a proposer of drafts is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

UNMADE = -1
"""Stands for a token that is made only if the proposal is taken (see `drafter.Drafter`)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guessed next tokens of one reply, from the proposer called `source`.

    `confidence` is how likely each of them is right, given that those before it are. Where the tokens take work of the
    device they are `UNMADE`, all of them.
    """

    source: str
    tokens: tuple[int, ...]
    confidence: float

    @property
    def promised(self) -> bool:
        """Whether the tokens are still to be made."""
        return UNMADE in self.tokens[:1]

    def expected(self, limit: int) -> float:
        """Tokens that are likely to be accepted of the first `limit`."""
        return sum(self.confidence**i for i in range(1, 1 + min(limit, len(self.tokens))))


class Proposer(Protocol):
    """One reply's source of drafts, whether it copies, asks a draft model or reads a head of the model itself.

    It is made with the prompt, told of every committed token, and called on the engine's thread only.
    """

    @property
    def name(self) -> str: ...

    def absorb(self, tokens: Sequence[int]) -> None:
        """The reply goes on with these tokens. Called before each proposal, without tokens too: work may be spread."""
        ...

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        """Up to `limit` next tokens, None where there is nothing to guess from.

        `ahead` is 1 while a step is running whose token is not known yet: the answer is then what would be proposed if
        that token came as this proposer expects. It only decides whether waiting for the token may be worth it.
        """
        ...
