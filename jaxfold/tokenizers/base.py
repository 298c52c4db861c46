"""The contract of a tokenizer: text to ids, ids to bytes, and which ids are control tokens."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Protocol


class TokenizerError(Exception):
    """A vocabulary that cannot be used. The message is one sentence."""


class Tokenizer(Protocol):
    """Immutable and thread-safe. Ids are Python ints in [0, vocab_size)."""

    vocab_size: int
    bos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    special_tokens: Mapping[str, int]  # every added / control token's text -> id, non-"special" added ones too

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of `text`.

        With `parse_special` False (user text) a control token written out in the text is ordinary text.
        `add_special` adds what the model's own tokenizer adds around a prompt (BOS, where it has one).
        """
        ...

    def encode_rendered(self, text: str, literals: Mapping[str, str]) -> list[int]:
        """Ids of a rendered chat template: control tokens in `text` are parsed, except inside literals.

        `literals` maps marker -> user text that stood there; each marker is a string that occurs in `text` and holds
        no control token. A marker's text is put back and tokenised together with its neighbours, as plain text.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the id stands for; b"" for ids past the vocabulary. Control tokens give their text."""
        ...

    def is_control(self, token_id: int) -> bool:
        """True for control tokens (BOS, EOS, <|im_start|> ...), which are not shown as text."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of the ids; invalid UTF-8 becomes U+FFFD. Leading-space rules as the model's own tokenizer."""
        ...

    def detokenizer(self, *, skip_special: bool = True, keep: Iterable[int] = ()) -> "Detokenizer":
        """A fresh incremental detokeniser for one reply. Ids in `keep` are shown though they are control tokens."""
        ...


class Detokenizer(Protocol):
    """Incremental: the pieces of `push` and `flush` concatenate to the whole text; no piece ends inside a character."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this id ("" while a character is incomplete)."""
        ...

    def flush(self) -> str:
        """What is left at the end; an incomplete character comes out as U+FFFD here and only here."""
        ...
