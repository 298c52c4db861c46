"""One reply as a row of blocks (reasoning, text, tool calls), one open at a time, as Messages and Responses show it."""

from dataclasses import dataclass
from dataclasses import field
from typing import Literal

from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """A part of the reply. `text` of a call are its arguments as JSON."""

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """`cut` says that the reply's limit ended the block."""

    block: Block
    cut: bool = False


Step = Opened | Grown | Closed


class Blocks:
    """Sorts the pieces of one reply into blocks.

    Blanks at the edges of reasoning are left out. Text of blanks only, such as the line break between two calls, is no
    block of its own, unless it is all that the reply holds. The pieces of one call must follow each other.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._kind: BlockKind | None = None
        self._held = ""

    def push(self, piece: Piece) -> list[Step]:
        """What a piece of the reply does to the blocks."""
        match piece:
            case ReasoningDelta():
                return self._words("reasoning", piece.text)
            case TextDelta():
                return self._words("text", piece.text)
            case ToolCallStart():
                return [*self._close(), self._begin("call", piece.id, piece.name)]
            case ToolCallDelta():
                return self._grow(piece.arguments)

    def finish(self, cut: bool) -> list[Step]:
        """The reply is over; `cut` says that its limit ended it."""
        steps: list[Step] = []
        blanks = self._held
        if self._kind == "text" and blanks and not self.all:
            steps = [self._begin("text"), *self._grow(blanks)]
        return [*steps, *self._close(cut)]

    def text(self, kind: BlockKind) -> str:
        """The text of every block of one kind."""
        return "".join(block.text for block in self.all if block.kind == kind)

    def _words(self, kind: BlockKind, text: str) -> list[Step]:
        steps = [] if self._kind == kind else self._close()
        self._kind = kind
        text, self._held = self._held + text, ""
        if self._open is None:
            if not text.strip():
                self._held = text
                return steps
            steps.append(self._begin(kind))
            text = text.lstrip() if kind == "reasoning" else text
        if kind == "reasoning":
            shown = text.rstrip()
            text, self._held = shown, text[len(shown) :]
        return steps + self._grow(text)

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> Step:
        self._open = Block(len(self.all), kind, call_id, name)
        self._kind, self._held = kind, ""
        self.all.append(self._open)
        return Opened(self._open)

    def _grow(self, text: str) -> list[Step]:
        if not text or self._open is None:
            return []
        self._open.pieces.append(text)
        return [Grown(self._open, text)]

    def _close(self, cut: bool = False) -> list[Step]:
        closed: list[Step] = [] if self._open is None else [Closed(self._open, cut)]
        self._open, self._kind, self._held = None, None, ""
        return closed
