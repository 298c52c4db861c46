"""How well a proposer has done for one reply."""

import math

KEEP = 0.8
"""What the record of earlier windows still counts when another one is entered."""

FORGET = 64
"""Tokens after which a record that was not renewed counts for about a third, so that a bad one is tried again."""

PRIOR = 2.0
"""Tokens that a proposer's own confidence counts for."""

LOSSES = 3
"""Windows in a row without an accepted draft that park a proposer."""

PARK = 16
LONGEST_PARK = 256
"""Tokens of the reply that it stays parked: twice as many each time, until a draft is accepted."""


class Record:
    """Accepted and rejected drafts of one proposer, the latest counting most. `now` is the reply's token count."""

    def __init__(self) -> None:
        self._hits = 0.0
        self._misses = 0.0
        self._seen = 0
        self._losses = 0
        self._park = PARK
        self._parked_until = 0

    def parked(self, now: int) -> bool:
        return now < self._parked_until

    def rate(self, confidence: float, now: int) -> float:
        """How likely the next draft is right: `confidence` where nothing is known, what was seen otherwise."""
        weight = math.exp((self._seen - now) / FORGET)
        return (weight * self._hits + PRIOR * confidence) / (weight * (self._hits + self._misses) + PRIOR)

    def saw(self, drafted: int, accepted: int, now: int) -> None:
        """A window of `drafted` tokens was verified; the first `accepted` of them were right."""
        # The tokens after the first wrong one say nothing.
        self._hits = KEEP * self._hits + accepted
        self._misses = KEEP * self._misses + (accepted < drafted)
        self._seen = now
        if accepted:
            self._losses, self._park = 0, PARK
            return
        self._losses += 1
        if self._losses == LOSSES:
            self._losses = 0
            self._parked_until = now + self._park
            self._park = min(2 * self._park, LONGEST_PARK)
