"""Harmony (gpt-oss): a reply of several messages, each with a channel that says what it is.

Messages in the analysis channel are reasoning, those in other channels the answer.  A message to a function stays in
the answer as it was written: `jaxfold/chat/tools/harmony.py` reads the call out of it.
"""

import re
from collections.abc import Callable
from collections.abc import Iterable

from jaxfold.chat.tools.harmony import CALL
from jaxfold.chat.tools.harmony import MAX_HEADER
from jaxfold.chat.tools.harmony import MESSAGE
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Thought
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Source
from jaxfold.chat.tools.source import Work
from jaxfold.chat.tools.source import overlap

START, CHANNEL = "<|start|>", "<|channel|>"
ENDS = ("<|end|>", CALL, "<|return|>", START, CHANNEL)
END = re.compile("|".join(map(re.escape, ENDS)))
HEADERS = (START, CHANNEL, " to=", "to=")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def is_harmony(template: str | None) -> bool:
    """The model's template writes messages in channels."""
    return template is not None and CHANNEL in template and MESSAGE in template


class HarmonySplitter:
    """One pass over one reply, which begins where a prompt with an open assistant message ends."""

    def __init__(self) -> None:
        self._source = Source()
        self._parts: list[Part] = []
        self._answered = False
        self.opened = False
        """The reply has reasoning."""
        self.closed = False
        """The first message of reasoning has ended."""
        self._work = self._run()

    def push(self, text: str) -> Iterable[Part]:
        """The parts that became certain with `text`."""
        self._source.feed(text)
        return self._resume()

    def flush(self) -> Iterable[Part]:
        """At the end of the reply: the rest."""
        self._source.ended = True
        return self._resume()

    def _resume(self) -> Iterable[Part]:
        next(self._work, None)
        parts, self._parts = self._parts, []
        return parts

    def _run(self) -> Work[None]:
        source = self._source
        while (yield from source.peek()):
            header = ""
            for begin in HEADERS:
                if (yield from source.follows(begin)):
                    header = yield from self._header()
                    break
            yield from self._message(header)

    def _header(self) -> Work[str]:
        """The text up to the message. A reply that ends inside a header has said nothing more."""
        source = self._source
        try:
            return (yield from source.text_until(MESSAGE, MAX_HEADER))
        except NotACallError:
            if source.ended and len(source.rest()) <= MAX_HEADER:
                source.take(len(source.rest()))
            else:
                self._words(source.take(1))  # no header at all
            return ""

    def _message(self, header: str) -> Work[None]:
        named, recipient = CHANNEL_NAME.search(header), RECIPIENT.search(header)
        channel = named.group(1) if named else "final"
        if recipient is not None:
            self._words(f"{CHANNEL}commentary to={recipient.group(1)}{MESSAGE}")
            yield from self._body(self._words)
            self._words(CALL)
        elif channel == "analysis":
            if self.opened:
                self._parts.append(Thought("\n"))
            self.opened = True
            yield from self._body(lambda text: self._parts.append(Thought(text)))
            self.closed = self.closed or not self._source.ended
        else:
            if self._answered and header:
                self._words("\n\n")
            yield from self._body(self._words)

    def _words(self, text: str) -> None:
        self._answered = True
        self._parts.append(Words(text))

    def _body(self, emit: Callable[[str], None]) -> Work[None]:
        """Text up to the end of the message, whose mark is read where it belongs to this message."""
        source = self._source
        while True:
            rest = source.rest()
            end = END.search(rest)
            certain = end.start() if end else len(rest) - (0 if source.ended else overlap(rest, ENDS))
            if certain:
                emit(source.take(certain))
            if end is not None:
                if end.group() not in (START, CHANNEL):
                    source.take(len(end.group()))
                return
            if source.ended:
                return
            yield
