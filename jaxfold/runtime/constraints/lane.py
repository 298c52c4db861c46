"""One reply on its way through what its guide allows: reasoning, then the grammar, then the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from jaxfold.runtime.api import Guide
from jaxfold.runtime.api import Matcher

Phase = Literal["start", "thinking", "closing", "grammar", "end", "free"]
Mask = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _State:
    """Where a reply stands; `closed` counts the forced tokens of the reasoning's end, `matched` whether the matcher
    took the last token.
    """

    phase: Phase
    closed: int = 0
    matched: bool = False


class LaneGuide:
    """Made when a reply begins, or begins again. `words` is the length of a mask.

    `accept` every committed token, in order; `masks` says what may follow, now and after drafts.
    """

    def __init__(self, guide: Guide, words: int) -> None:
        self._guide = guide
        self._words = words
        self._matcher: Matcher | None = None if guide.grammar is None else guide.grammar.matcher()
        self._ids: list[int] = []
        thinking = guide.thinking
        first: Phase = self._answer()
        if thinking is not None:
            first = "thinking" if thinking.opened else first if thinking.start is None else "start"
        self._states = [_State(first)]

    @property
    def free(self) -> bool:
        """Whether everything is allowed from here on."""
        return self._states[-1].phase == "free"

    def masks(self, drafts: Sequence[int] = ()) -> tuple[int, list[Mask | None]]:
        """How many of the drafts may come, and the mask of the next token and of those after each of them.

        None stands for a mask that allows everything.

        Raises:
            ValueError: nothing may come.
        """
        masks = [self._mask()]
        kept = 0
        for draft in drafts:
            mask = masks[-1]
            # After an end token nothing is drawn, and nothing need be guessed.
            if draft in self._guide.end_ids or not (mask is None or allows(mask, draft)) or not self.accept(draft):
                break
            kept += 1
            masks.append(self._mask())
        self.rollback(kept)
        return kept, masks

    def accept(self, token: int) -> bool:
        """Enter a token; False if it may not come."""
        state = self._states[-1]
        follows = self._follow(state, token)
        if follows is None:
            return False
        self._ids.append(token)
        self._states.append(follows)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        if not count:
            return
        if self._matcher is not None:
            self._matcher.rollback(sum(state.matched for state in self._states[-count:]))
        del self._states[-count:], self._ids[-count:]

    def _answer(self) -> Phase:
        return "free" if self._guide.grammar is None else "grammar"

    def _due(self) -> bool:
        """Whether the reasoning has used up its budget."""
        thinking = self._guide.thinking
        return thinking is not None and thinking.budget is not None and len(self._ids) >= thinking.budget - 1

    def _follow(self, state: _State, token: int) -> _State | None:
        thinking = self._guide.thinking
        phase = state.phase
        if thinking is not None and phase in ("start", "thinking", "closing"):
            if phase == "start" and token != thinking.start:
                return self._answered(token)
            if phase == "start":
                return _State("thinking")
            if thinking.close and (phase == "closing" or self._due()):
                if token != thinking.close[state.closed]:
                    return None
                done = state.closed + 1
                return _State(self._answer()) if done == len(thinking.close) else _State("closing", done)
            ended = (*self._ids[len(self._ids) + 1 - len(thinking.end) :], token) == thinking.end
            return _State(self._answer() if ended else "thinking")
        return self._answered(token)

    def _answered(self, token: int) -> _State | None:
        state = self._states[-1]
        if state.phase == "end":
            return state if token in self._guide.end_ids else None
        if self._matcher is None or state.phase == "free":
            return _State("free")
        if token in self._guide.end_ids:
            return _State("end") if self._matcher.complete else None
        if not self._matcher.accept(token):
            return None
        # Where a match may also go on, the end token decides; where it may not, the grammar has nothing left to say.
        if self._guide.then_free and self._matcher.complete:
            return _State("free", matched=True)
        return _State("grammar", matched=True)

    def _mask(self) -> Mask | None:
        state, thinking = self._states[-1], self._guide.thinking
        mask = np.zeros(self._words, np.int32)
        match state.phase:
            case "free":
                return None
            case "end":
                add(mask, *self._guide.end_ids)
            case "thinking" | "closing" if thinking and thinking.close and (state.phase == "closing" or self._due()):
                add(mask, thinking.close[state.closed])
            case "thinking" | "closing":
                if self._matcher is None:
                    return None
                # The reply must not end before its answer.
                mask[:] = -1
                remove(mask, *self._guide.end_ids)
            case "start" | "grammar":
                if self._matcher is None:
                    return None
                self._fill(mask, self._matcher)
                if state.phase == "start" and thinking is not None and thinking.start is not None:
                    add(mask, thinking.start)
        if not mask.any():
            raise ValueError("no token may follow")
        return mask

    def _fill(self, mask: Mask, matcher: Matcher) -> None:
        matcher.fill(mask)
        if matcher.complete:
            add(mask, *self._guide.end_ids)
        else:
            remove(mask, *self._guide.end_ids)


def add(mask: Mask, *tokens: int) -> None:
    """Allow these tokens."""
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token // 32] |= np.uint32(1 << (token % 32))


def remove(mask: Mask, *tokens: int) -> None:
    """Forbid these tokens."""
    bits = mask.view(np.uint32)
    for token in tokens:
        bits[token // 32] &= ~np.uint32(1 << (token % 32))


def allows(mask: Mask, token: int) -> bool:
    """Whether the token's bit is set."""
    return bool(int(mask.view(np.uint32)[token // 32]) >> (token % 32) & 1)
