"""What every tokenizer here shares: a table of token bytes, and control tokens around and inside a text."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from jaxfold.tokenizers.detokenize import IncrementalDetokenizer
from jaxfold.tokenizers.detokenize import TokenTable
from jaxfold.tokenizers.detokenize import decode
from jaxfold.tokenizers.detokenize import hidden_ids
from jaxfold.tokenizers.matching import Filled
from jaxfold.tokenizers.matching import check_text
from jaxfold.tokenizers.matching import fill


class TableTokenizer:
    """The `Tokenizer` contract over a token table; a subclass sets the fields and encodes between control tokens."""

    _table: TokenTable
    _prefix: Sequence[int]
    _suffix: Sequence[int]

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of `text`. Raises TokenizerError for half a surrogate pair."""
        check_text(text)
        whole = ((0, len(text)),) if parse_special else ()
        ids = self._encode_filled(Filled(text, whole))
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def encode_rendered(self, text: str, literals: Mapping[str, str]) -> list[int]:
        """Ids of a rendered chat template, whose control tokens are parsed except inside `literals`."""
        return self._encode_filled(fill(text, literals))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the id stands for; b"" for ids past the vocabulary. Control tokens give their text."""
        return self._table.token_bytes(token_id)

    def is_control(self, token_id: int) -> bool:
        """True for control and unknown pieces and special added tokens, which are not shown as text."""
        return token_id in self._table.control

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of the ids, with the leading-space rule of the vocabulary."""
        return decode(self._table, ids, hidden_ids(self._table.control, skip_special))

    def detokenizer(self, *, skip_special: bool = True, keep: Iterable[int] = ()) -> IncrementalDetokenizer:
        """A fresh incremental detokeniser for one reply."""
        return IncrementalDetokenizer(self._table, hidden_ids(self._table.control, skip_special, keep))

    def _encode_filled(self, filled: Filled) -> list[int]:
        raise TypeError(f"{type(self).__name__} does not encode")
