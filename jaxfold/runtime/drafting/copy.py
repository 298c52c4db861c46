"""Copies: what followed the last tokens where they stood before, in the prompt or in the reply itself."""

from collections.abc import Sequence

from jaxfold.runtime.drafting.base import Proposal

GRAMS = (8, 3)
"""Lengths of the token runs that are looked up, longest first: the long ones tell apart places that look alike."""

LEAST = 4
"""Tokens that must agree before a copy is proposed."""

LONGEST = 32
"""Tokens that are compared; more make no difference."""

REACH = 1 << 16
"""Latest tokens that are remembered."""

BATCH = 2048
"""Tokens of the prompt that are indexed in one call, about 2 ms."""


class CopyProposer:
    """The place where the last tokens stood before is followed for as long as the reply agrees with it.

    Each token costs a constant number of look-ups. The index holds at most `REACH` runs of each length.
    """

    name = "copy"

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._prompt = len(prompt)
        self._indexed = 0
        self._ends: tuple[dict[int, int], ...] = tuple({} for _ in GRAMS)
        self._source = 0
        self._match = 0

    def absorb(self, tokens: Sequence[int]) -> None:
        """See `Proposer.absorb`; a long prompt is indexed over several calls."""
        self._tokens.extend(tokens)
        for end in range(self._indexed, min(len(self._tokens), self._indexed + BATCH + len(tokens))):
            self._enter(end)

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        """See `Proposer.propose`. A copy that reaches the reply's end goes on with itself: a loop repeats."""
        known = len(self._tokens)
        match = self._match + ahead
        if self._indexed < known or not self._match or match < LEAST or limit < 1:
            return None
        drafts: list[int] = []
        for place in range(self._source, self._source + ahead + limit):
            drafts.append(self._tokens[place] if place < known else drafts[place - known])
        # A longer run that agreed is likelier to go on; where it was a chance hit, the lane's record says so.
        return Proposal(self.name, tuple(drafts[ahead:]), 1.0 - 1.5 / (match + 1))

    def _enter(self, at: int) -> None:
        """Index the run that ends with token `at`, and follow the reply."""
        self._indexed = at + 1
        if self._match and self._tokens[self._source] == self._tokens[at]:
            self._source, self._match = self._source + 1, min(self._match + 1, LONGEST)
        else:
            self._match = 0
        for gram, ends in zip(GRAMS, self._ends, strict=True):
            if at + 1 < gram:
                continue
            key = self._key(at, gram)
            place = ends.get(key)
            # What comes before the reply is only looked for once it begins.
            if place is not None and at + 1 >= self._prompt and self._match < gram:
                self._consider(place, at)
            ends[key] = at + 1
            old = at - REACH
            if old >= gram and ends.get(stale := self._key(old, gram)) == old + 1:
                del ends[stale]

    def _consider(self, place: int, at: int) -> None:
        """Follow `place`, the token after an earlier run, if more tokens before it agree than where we are."""
        tokens, match = self._tokens, 0
        while match < LONGEST and match < place and tokens[place - 1 - match] == tokens[at - match]:
            match += 1
        if match > self._match:
            self._source, self._match = place, match

    def _key(self, at: int, gram: int) -> int:
        return hash(tuple(self._tokens[at + 1 - gram : at + 1]))
