"""The scheduling policy, without clocks, threads or devices: who gets the next chunk, how rounds and
chunks share the time, and which background reply gives way.

None of it can change a token of a reply, only when the token comes.
"""

import math
from collections.abc import Sequence
from typing import Protocol

PASS_LIMIT = 8
"""A prompt passed over for this many chunks takes the next one."""


class Fill(Protocol):
    """A prompt that is being filled. `passed` starts at 0 and belongs to `pick_chunk`."""

    passed: int

    @property
    def background(self) -> bool: ...

    @property
    def tokens_left(self) -> int:
        """Prompt tokens not yet in the cache."""
        ...

    @property
    def arrival(self) -> int: ...


class VictimLane(Protocol):
    """A lane that may have to give way, whether it decodes or still fills its prompt."""

    @property
    def background(self) -> bool: ...

    @property
    def finished(self) -> bool: ...

    @property
    def protected(self) -> bool:
        """Whether the request got its lane by age (`RequestQueue.due`), so that it keeps it."""
        ...

    @property
    def arrival(self) -> int: ...


def pick_chunk(fills: Sequence[Fill], whole_prompts: bool = False) -> int:
    """Index of the prompt that gets the next chunk; counts one pass for each of the others.

    Foreground before background, then the fewest tokens left, then arrival.  A prompt that was passed
    over `PASS_LIMIT` times goes first whatever its class; of several, the one passed over most often.
    `whole_prompts` (a decode share of 0) fills one prompt after the other in arrival order,
    foreground first, and counts no passes.

    Raises:
        ValueError: `fills` is empty.
    """
    if not fills:
        raise ValueError("no prompt is being filled")
    everyone = range(len(fills))
    if whole_prompts:
        return min(everyone, key=lambda i: (fills[i].background, fills[i].arrival))
    overdue = [i for i in everyone if fills[i].passed >= PASS_LIMIT]
    if overdue:
        chosen = min(overdue, key=lambda i: (-fills[i].passed, fills[i].arrival))
    else:
        chosen = min(everyone, key=lambda i: (fills[i].background, fills[i].tokens_left, fills[i].arrival))
    for i in everyone:
        fills[i].passed = 0 if i == chosen else fills[i].passed + 1
    return chosen


class DecodeShare:
    """How long the running replies may decode between two chunks of the prompts being filled.

    Each chunk earns `share` times its own seconds for decode rounds, and at most `max_rounds` rounds.
    A round that takes longer than the credit leaves a debt that later chunks pay; credit that was not
    spent is lost.  With a share of 0 no round runs while a prompt is being filled.
    """

    def __init__(self, share: float = 0.25, max_rounds: int = 32) -> None:
        if not (math.isfinite(share) and share >= 0):
            raise ValueError(f"the decode share must be a finite number of at least 0, not {share}")
        if max_rounds < 1:
            raise ValueError(f"at least one round must be allowed after a chunk, not {max_rounds}")
        self._share = share
        self._max_rounds = max_rounds
        self._credit = 0.0
        self._rounds_left = 0

    @property
    def whole_prompts(self) -> bool:
        """Whether prompts are filled one after the other: the argument of `pick_chunk`."""
        return self._share == 0

    @property
    def credit(self) -> float:
        """Seconds that rounds may still take; negative after a round that took too long."""
        return self._credit

    def chunk_done(self, seconds: float) -> None:
        """A chunk took `seconds`."""
        self._credit = min(self._credit, 0.0) + self._share * seconds
        self._rounds_left = self._max_rounds

    def may_round(self) -> bool:
        """Whether a decode round comes before the next chunk. Ask only while a prompt is being filled."""
        return self._credit > 0 and self._rounds_left > 0

    def spent(self, seconds: float) -> None:
        """A decode round took `seconds` while a prompt was being filled."""
        self._credit -= seconds
        self._rounds_left -= 1

    def reset(self) -> None:
        """Forget credit and debt: no prompt is being filled any more."""
        self._credit = 0.0
        self._rounds_left = 0


def choose_victim(lanes: Sequence[VictimLane | None]) -> int | None:
    """Index of the lane that yields to a waiting foreground request, None if none does.

    It is the background request that arrived last among those that are neither finished nor protected,
    so the same requests keep their lanes however often this is asked. Empty lanes are None.
    """
    able = [
        (lane.arrival, i)
        for i, lane in enumerate(lanes)
        if lane is not None and lane.background and not lane.finished and not lane.protected
    ]
    return max(able)[1] if able else None
