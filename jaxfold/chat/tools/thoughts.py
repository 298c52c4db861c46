"""Calls inside a reasoning block that never closes: where a reply ends so, the call is what it wanted to say."""

from collections.abc import Sequence

from jaxfold.chat.tools.parts import CallEnd
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.tools.reader import CallReader
from jaxfold.chat.tools.reader import ToolUse


class ThoughtCalls:
    """Follows the text of one reasoning block.

    Text that is no call is reasoning at once.  From the first whole call on everything is held back: it is reasoning
    too if the block closes (the call was only mentioned), else the reasoning ends there and the call is the answer.
    """

    def __init__(self, use: ToolUse) -> None:
        self._reader = CallReader(use, whole=True, bare=False)
        self._held = ""
        self._found: list[Part] = []

    def push(self, text: str) -> str:
        """The reasoning that became certain."""
        self._held += text
        return self._sift(self._reader.push(text))

    def close(self) -> str:
        """The block is closed: the rest of its text."""
        held, self._held = self._held, ""
        self._found.clear()
        return held

    def flush(self) -> str:
        """The reply ended inside the block: the rest of its reasoning."""
        reasoning = self._sift(self._reader.flush())
        if any(isinstance(part, CallEnd) for part in self._found):
            return reasoning
        return reasoning + self.close()

    @property
    def found(self) -> Sequence[Part]:
        """After `flush`: the answer, from the first call on."""
        return tuple(self._found)

    def _sift(self, parts: Sequence[Part]) -> str:
        size = 0
        for part in parts:
            if isinstance(part, Words) and not self._found:
                size += len(part.text)
            else:
                self._found.append(part)
        shown, self._held = self._held[:size], self._held[size:]
        return shown
