"""The parts of a reply in its shown text: reasoning, answer, calls."""

from collections.abc import Iterable

from jaxfold.chat.harmony import HarmonySplitter
from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.reasoning import ReasoningSplitter
from jaxfold.chat.reasoning import Split
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Thought
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.tools.reader import CallReader
from jaxfold.chat.tools.reader import Spacing
from jaxfold.chat.tools.reader import ToolUse
from jaxfold.chat.tools.thoughts import ThoughtCalls


class PartReader:
    """One pass over one reply. Nothing depends on the pieces that the text comes in."""

    def __init__(
        self, markers: ReasoningMarkers | None, in_reasoning: bool, channels: bool, tools: ToolUse | None
    ) -> None:
        self._harmony = HarmonySplitter() if channels else None
        self._thoughts = ThoughtCalls(tools) if tools is not None and markers is not None else None
        self._splitter = None if markers is None else ReasoningSplitter(markers, in_reasoning, self._thoughts)
        self._calls = None if tools is None else CallReader(tools)
        self._spacing = Spacing()

    def push(self, text: str) -> list[Part]:
        """The parts that became certain with `text`."""
        if self._harmony is not None:
            return self._read(self._harmony.push(text))
        if self._splitter is not None:
            return self._read(_parts(self._splitter.push(text)))
        return self._read((Words(text),))

    def flush(self) -> list[Part]:
        """At the end of the reply: the rest."""
        parts: list[Part] = []
        if self._harmony is not None:
            parts += self._read(self._harmony.flush())
        elif self._splitter is not None:
            parts += self._read(_parts(self._splitter.flush()))
        if self._calls is not None:
            parts += self._spacing.apply(self._calls.flush())
            parts += self._spacing.apply(() if self._thoughts is None else self._thoughts.found)
            blank = self._spacing.flush()
            parts += [Words(blank)] if blank else []
        return parts

    def _read(self, parts: Iterable[Part]) -> list[Part]:
        """Calls read out of the answer."""
        if self._calls is None:
            return list(parts)
        read: list[Part] = []
        for part in parts:
            read += self._spacing.apply(self._calls.push(part.text)) if isinstance(part, Words) else (part,)
        return read


def _parts(split: Split) -> list[Part]:
    thought: list[Part] = [Thought(split.reasoning)] if split.reasoning else []
    return [*thought, Words(split.answer)] if split.answer else thought
