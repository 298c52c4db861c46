"""What a reply consists of, piece by piece, before it becomes events."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of an offered tool. The calls of a reply do not overlap."""

    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More JSON text of the arguments of the call that was begun last."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call that was begun last is complete. It is missing where a reply breaks off inside a long call."""


Part = Thought | Words | CallBegin | CallPiece | CallEnd
