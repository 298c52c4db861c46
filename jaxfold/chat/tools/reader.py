"""Reads the calls out of an answer while it is written.

A call is shown as a call once it is complete, or once `HELD` characters of it came without a fault and its arguments
have begun: short calls come whole, long ones in pieces as they are written.  What turns out to be no call before that
is text, every character of it.  A long call that breaks off keeps the arguments it has, which are then no whole JSON
object, and what follows is text.  All of that depends on the text alone, so a streamed reply and a whole one agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.parts import CallBegin
from jaxfold.chat.tools.parts import CallEnd
from jaxfold.chat.tools.parts import CallPiece
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Source
from jaxfold.chat.tools.source import Work

HELD = 256


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the calls of one reply are read: at most one of them unless `parallel`."""

    format: ToolFormat
    offer: Offer
    parallel: bool = True


class CallReader:
    """One pass over one text: calls and words in their order, every character of what is no call as it was.

    With `whole` no call is shown before it is complete. With `bare` a text that as a whole is a JSON call is one too.
    """

    def __init__(self, use: ToolUse, *, whole: bool = False, bare: bool = True) -> None:
        self.source = Source()
        self.offer = use.offer
        self._format = use.format
        self._single = not use.parallel
        self._whole = whole or self._single
        self._bare = bare and use.format.starts_bare
        self._parts: list[Part] = []
        self._pending: list[Part] = []
        self._open = self._argued = self._shown = False
        self._start = 0
        self._calls = 0
        self._work = self._run()

    def push(self, text: str) -> Sequence[Part]:
        """What became certain with `text`."""
        self.source.feed(text)
        return self._resume()

    def flush(self) -> Sequence[Part]:
        """At the end of the text: the rest."""
        self.source.ended = True
        return self._resume()

    @property
    def certain(self) -> bool:
        return self._argued and not self._whole and self.source.count - self._start > HELD

    def begin(self, written: str) -> str:
        name = self.offer.find(written)
        if name is None or self._open:
            raise NotACallError
        self._open = True
        self._pending.append(CallBegin(name))
        return name

    def piece(self, text: str) -> None:
        self._argued = True
        (self._parts if self._shown else self._pending).append(CallPiece(text))

    def end(self) -> None:
        self._calls += 1
        if not self._single or self._calls == 1:
            self._show()
            self._parts.append(CallEnd())
        self._close()
        self.source.keep()

    def _show(self) -> None:
        self._parts += self._pending
        self._pending.clear()
        self._shown = True

    def _close(self) -> None:
        """No call is open from here on."""
        self._open = self._argued = self._shown = False
        self._pending.clear()
        self._start = self.source.count

    def _resume(self) -> Sequence[Part]:
        next(self._work, None)
        if self.certain:
            self._show()
        parts, self._parts = self._parts, []
        return parts

    def _run(self) -> Work[None]:
        if self._bare:
            yield from self._attempt(self._format.read_start(self))
        while True:
            opener = yield from self._words()
            if opener is None:
                return
            yield from self._attempt(self._read(opener))

    def _read(self, opener: str) -> Work[None]:
        self.source.take(len(opener))
        yield from self._format.read(self, opener)

    def _attempt(self, reading: Work[None]) -> Work[None]:
        self._close()
        self.source.keep()
        try:
            yield from reading
        except NotACallError:
            if self.certain:
                self._show()
            elif not self._shown and self.source.kept():
                self._parts.append(Words(self.source.kept()))
        self._close()
        self.source.forget()

    def _words(self) -> Work[str | None]:
        """Text up to the next opener; that opener, None at the end."""
        openers = self._format.openers
        while True:
            rest = self.source.rest()
            opener = openers.find(rest)
            certain = opener.start() if opener else len(rest) - (0 if self.source.ended else openers.held(rest))
            if certain:
                self._parts.append(Words(self.source.take(certain)))
            if opener:
                return opener.group()
            if self.source.ended:
                return None
            yield


class Spacing:
    """Drops the blank space before calls, and all of it where an answer is calls alone."""

    def __init__(self) -> None:
        self._blank = ""
        self._worded = False
        self._called = False

    def apply(self, parts: Sequence[Part]) -> list[Part]:
        """The parts without that space. Blank space is held back until it is clear what follows."""
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, Words):
                text = self._words(part.text)
                if text:
                    kept.append(Words(text))
                continue
            if isinstance(part, CallBegin):
                self._blank, self._called = "", True
            kept.append(part)
        return kept

    def flush(self) -> str:
        """Blank space at the end of an answer without calls belongs to it."""
        return "" if self._called else self._blank

    def _words(self, text: str) -> str:
        body = text.rstrip()
        if not body:
            self._blank += text
            return ""
        whole = self._blank + body
        if self._called and not self._worded:
            whole = whole.lstrip()
        self._blank, self._worded = text[len(body) :], True
        return whole
