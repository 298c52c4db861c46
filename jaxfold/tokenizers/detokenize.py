"""Ids to text: a table of the bytes of every id, and an incremental detokeniser over it."""

import codecs
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Lead(Enum):
    """What becomes of the space that a model's tokenizer puts before the first word."""

    KEEP = "nothing is dropped"
    TEXT = "one space at the start of the text is dropped"
    PIECE = "one space at the start of the first shown piece is dropped"
    PIECES = "one space at the start of each piece is dropped until the text has begun"
    MARKS = "every space of the first shown piece is dropped"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of every id in [0, vocab_size); b"" for rows without a token.

    `control` ids are not shown as text. `verbatim` ids (control tokens, byte pieces, unknown) keep their leading space.
    """

    pieces: tuple[bytes, ...]
    control: frozenset[int]
    verbatim: frozenset[int]
    lead: Lead

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id; b"" for an id without a token."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""


class Chunks:
    """The bytes that each id of one text shows: control tokens left out, the leading space dropped. O(1) an id."""

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden
        self._leading = table.lead is not Lead.KEEP

    def push(self, token_id: int) -> bytes:
        """Bytes that the next id adds to the text."""
        piece = b"" if token_id in self._hidden else self._table.token_bytes(token_id)
        return self._begin(token_id, piece) if self._leading and piece else piece

    def _begin(self, token_id: int, piece: bytes) -> bytes:
        """The first bytes of a text, by the table's rule."""
        lead = self._table.lead
        ordinary = token_id not in self._table.verbatim
        if lead is Lead.MARKS:
            self._leading = False
            return piece.replace(b" ", b"") if ordinary else piece
        shown = piece.removeprefix(b" ") if lead is Lead.TEXT or ordinary else piece
        self._leading = lead is Lead.PIECES and not shown
        return shown


def decode(table: TokenTable, ids: Iterable[int], hidden: frozenset[int]) -> str:
    """The text of all ids at once; invalid UTF-8 becomes U+FFFD."""
    chunks = Chunks(table, hidden)
    return b"".join(map(chunks.push, ids)).decode("utf-8", errors="replace")


class IncrementalDetokenizer:
    """Text as it becomes certain; see the Detokenizer contract. Holds at most three bytes back."""

    def __init__(self, table: TokenTable, hidden: frozenset[int]) -> None:
        self._chunks = Chunks(table, hidden)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this id ("" while a character is incomplete)."""
        return self._utf8.decode(self._chunks.push(token_id))

    def flush(self) -> str:
        """What is left at the end; an incomplete character comes out as U+FFFD."""
        return self._utf8.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class ByteAlphabet:
    """GPT-2's alphabet: one printable character for each byte, so that any bytes can be written as text."""

    byte_of: dict[str, int]

    @classmethod
    def build(cls) -> "ByteAlphabet":
        """Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards, in order."""
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in set(printable)]
        return cls({chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)})

    def bytes_of(self, token: str) -> bytes:
        """The bytes a token stands for; a token that is not written in the alphabet stands for its own text."""
        try:
            return bytes([self.byte_of[char] for char in token])
        except KeyError:
            return token.encode()


def fill_table(pieces: Iterable[tuple[int, bytes]], size: int) -> tuple[bytes, ...]:
    """Bytes by id, b"" where no piece is given; ids from `size` on are left out."""
    table = [b""] * size
    for token_id, piece in pieces:
        if token_id < size:
            table[token_id] = piece
    return tuple(table)


def hidden_ids(control: frozenset[int], skip_special: bool, keep: Iterable[int] = ()) -> frozenset[int]:
    """Ids that are not shown."""
    return control.difference(keep) if skip_special else frozenset()


def find_run(ids: Sequence[int], run: Sequence[int]) -> Iterator[int]:
    """Positions at which `run` occurs in `ids`."""
    return (at for at in range(len(ids) - len(run) + 1) if list(ids[at : at + len(run)]) == list(run))
