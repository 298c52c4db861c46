"""Telling a model's reasoning from its answer in streamed text, and the levels of reasoning effort."""

import re
from collections.abc import Container
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxfold.chat.stops import StopFilter
from jaxfold.chat.stops import StopSet
from jaxfold.chat.types import LADDER

# A reply that starts with more blank space than this is an answer: what is held back must stay small.
MAX_BLANK_LEAD = 256


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts around a reasoning block."""

    start: str
    end: str

    def tokens(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """The added tokens that the markers are written with."""
        pieces = ((text, token_id) for text, token_id in vocabulary.items() if text.strip())
        return {text: token_id for text, token_id in pieces if text in self.start or text in self.end}


KNOWN_MARKERS = (
    ReasoningMarkers("<think>", "</think>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("◁think▷", "◁/think▷"),
    ReasoningMarkers("<|channel>thought\n", "<channel|>"),
)


def find_markers(template: str | None, vocabulary: Container[str]) -> ReasoningMarkers | None:
    """The markers that the template writes, or that the vocabulary has as tokens; None for a model without any."""
    for markers in KNOWN_MARKERS:
        if template is not None and markers.end in template:
            return markers
    for markers in KNOWN_MARKERS:
        if markers.start in vocabulary and markers.end in vocabulary:
            return markers
    return None


@dataclass(frozen=True, slots=True)
class Split:
    """What one piece of a reply's text added to its two parts."""

    reasoning: str = ""
    answer: str = ""


class Thoughts(Protocol):
    """Looks for calls in the text of a reasoning block. Each method returns the reasoning that became certain."""

    def push(self, text: str) -> str: ...

    def close(self) -> str:
        """The block is closed."""
        ...

    def flush(self) -> str:
        """The reply ended inside the block."""
        ...


class ReasoningSplitter:
    """One pass over one reply.

    Reasoning starts at once if the prompt ends inside an open block, else only where the reply's first text is the
    opening marker: a marker that an answer quotes is text.  Blank space around the reasoning and newlines before the
    answer are dropped; a tail that may become a marker is held back.  A reply that ends in an open block is reasoning,
    but for what `thoughts` holds back.
    """

    def __init__(self, markers: ReasoningMarkers, open_at_start: bool, thoughts: Thoughts | None = None) -> None:
        self._markers = markers
        self._thoughts = thoughts
        self._until_end = StopFilter(StopSet((markers.end,)))
        self._state = "reasoning" if open_at_start else "start"
        self._held = ""
        self._blank = ""
        self._reasoned = False

    @property
    def opened(self) -> bool:
        """The reply has a reasoning block."""
        return self._state in ("reasoning", "gap") or self.closed

    @property
    def closed(self) -> bool:
        """The closing marker was seen."""
        return self._until_end.stop is not None

    def push(self, text: str) -> Split:
        if self._state == "start":
            return self._start(text)
        if self._state == "reasoning":
            return self._reason(text)
        return Split(answer=self._answer(text))

    def flush(self) -> Split:
        """At the end of the reply: what was held back."""
        if self._state == "start":
            held, self._held = self._held, ""
            return Split(answer=held)
        if self._state == "reasoning":
            text = self._until_end.flush()
            if self._thoughts is not None:
                text = self._thoughts.push(text) + self._thoughts.flush()
            return Split(reasoning=self._trimmed(text))
        return Split()

    def _start(self, text: str) -> Split:
        self._held += text
        lead = self._held.lstrip()
        if len(self._held) - len(lead) <= MAX_BLANK_LEAD:
            if lead.startswith(self._markers.start):
                self._state, self._held = "reasoning", ""
                return self._reason(lead[len(self._markers.start) :])
            if self._markers.start.startswith(lead):
                return Split()
        self._state = "answer"
        held, self._held = self._held, ""
        return Split(answer=held)

    def _reason(self, text: str) -> Split:
        text = self._until_end.push(text)
        if self._thoughts is not None:
            text = self._thoughts.push(text) + (self._thoughts.close() if self.closed else "")
        reasoning = self._trimmed(text)
        if not self.closed:
            return Split(reasoning)
        self._state = "gap"
        return Split(reasoning, self._answer(self._until_end.rest))

    def _trimmed(self, text: str) -> str:
        """Reasoning without the blank space at its start, and its last blank space held back."""
        if not self._reasoned:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._blank += text
            return ""
        shown = self._blank + body
        self._reasoned, self._blank = True, text[len(body) :]
        return shown

    def _answer(self, text: str) -> str:
        if self._state == "gap":
            text = text.lstrip("\n")
            if text:
                self._state = "answer"
        return text


def named_efforts(template: str | None) -> tuple[str, ...]:
    """The levels that a template names in quotes, weakest first."""
    words = set(re.findall(r"""["'](minimal|low|medium|high|xhigh|max)["']""", template or ""))
    return tuple(level for level in LADDER if level in words)


def template_effort(level: str, named: tuple[str, ...]) -> str:
    """The level to pass to a template that names the levels `named`, for one that a request asked for.

    A template that names no levels knows low, medium and xhigh.  Else the nearest named level is taken, the higher
    one of two; "none" passes unchanged.
    """
    if level == "none" or level in named:
        return level
    if not named:
        return {"high": "xhigh", "max": "xhigh", "minimal": "low"}.get(level, level)
    if level == "xhigh":
        return "max" if "max" in named else level
    asked = LADDER.index(level)
    return min(reversed(named), key=lambda name: abs(LADDER.index(name) - asked))
