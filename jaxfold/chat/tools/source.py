"""The text of a reply that is still being written, read by generators that wait where they need more of it.

A parser is a generator that yields whenever it has to wait; `Source` holds what has come and not been read.  Whatever
a parser decides depends on the text alone and never on the pieces it came in: it waits until it can be certain.
"""

import re
from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence

type Work[T] = Generator[None, None, T]
type Emit = Callable[[str], None]

SPACE = re.compile(r"\s+")


class NotACallError(Exception):
    """From the source's position on, the text is not what a call would be."""


class Source:
    """The unread text. `count` are the characters that were read so far; `kept` ones can be given back as text."""

    __slots__ = ("_at", "_kept", "_text", "count", "ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None
        self.count = 0
        self.ended = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def rest(self) -> str:
        """All that has come and is unread."""
        return self._text[self._at :]

    def take(self, size: int) -> str:
        """Read `size` characters that are there."""
        piece = self._text[self._at : self._at + size]
        self._at += size
        self.count += size
        if self._kept is not None:
            self._kept.append(piece)
        return piece

    def keep(self) -> None:
        """From here on remember what is read."""
        self._kept = []

    def kept(self) -> str:
        """What was read since `keep`."""
        return "".join(self._kept or ())

    def forget(self) -> None:
        self._kept = None

    def need(self, size: int) -> Work[str]:
        """The next `size` characters, fewer only at the end of the text. They stay unread."""
        while len(self._text) - self._at < size and not self.ended:
            yield
        return self._text[self._at : self._at + size]

    def peek(self) -> Work[str]:
        """The next character, "" at the end."""
        return (yield from self.need(1))

    def follows(self, literal: str) -> Work[bool]:
        """Whether `literal` comes next."""
        while True:
            got = self._text[self._at : self._at + len(literal)]
            if got == literal:
                return True
            if self.ended or not literal.startswith(got):
                return False
            yield

    def accept(self, literal: str) -> Work[bool]:
        """Read `literal` if it comes next."""
        if not (yield from self.follows(literal)):
            return False
        self.take(len(literal))
        return True

    def expect(self, literal: str) -> Work[None]:
        """Read `literal`.

        Raises:
            NotACallError: something else comes next.
        """
        if not (yield from self.accept(literal)):
            raise NotACallError

    def run(self, characters: re.Pattern[str], emit: Emit) -> Work[None]:
        """Read as long as `characters` (a class with +) matches."""
        while True:
            match = characters.match(self._text, self._at)
            if match is not None:
                emit(self.take(match.end() - match.start()))
            if self._at < len(self._text) or self.ended:
                return
            yield

    def word(self, characters: re.Pattern[str]) -> Work[str]:
        """As `run`; what was read."""
        pieces: list[str] = []
        yield from self.run(characters, pieces.append)
        return "".join(pieces)

    def space(self) -> Work[None]:
        """Read blank space."""
        yield from self.run(SPACE, _nothing)

    def until(self, end: str, emit: Emit, before: Sequence[str] = ("",)) -> Work[None]:
        """Read up to `end` and `end` too; what stands before it is emitted as it becomes certain.

        The longest of the texts `before` that stands directly before `end` belongs to it.

        Raises:
            NotACallError: the text ends first.
        """
        ends = [lead + end for lead in sorted(before, key=len, reverse=True)]
        while True:
            text = self.rest()
            at = min((found for one in ends if (found := text.find(one)) >= 0), default=-1)
            if at >= 0:
                if at:
                    emit(self.take(at))
                self.take(next(len(one) for one in ends if text.startswith(one, at)))
                return
            certain = len(text) if self.ended else len(text) - overlap(text, ends)
            if certain:
                emit(self.take(certain))
            if self.ended:
                raise NotACallError
            yield

    def text_until(self, end: str, most: int) -> Work[str]:
        """The short text before `end`, which is read too.

        Raises:
            NotACallError: more than `most` characters, or the end of the text, come before `end`. Nothing was read.
        """
        got = yield from self.need(len(end))
        while end not in got:
            if self.ended or len(got) > most + len(end):
                raise NotACallError
            got = yield from self.need(len(got) + 1)
        text = self.take(got.index(end))
        self.take(len(end))
        return text


def overlap(text: str, literals: Sequence[str]) -> int:
    """The length of the longest end of `text` that one of `literals` starts with and goes on after."""
    longest = max(map(len, literals), default=1) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(one.startswith(text[-size:]) for one in literals)), 0)


def _nothing(_: str) -> None:
    pass
