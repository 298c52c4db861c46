"""The tokenizer over a SentencePiece model, run by the `sentencepiece` library."""

import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from sentencepiece import SentencePieceProcessor

from jaxfold.tokenizers.added import AddedToken
from jaxfold.tokenizers.added import ControlFinder
from jaxfold.tokenizers.added import Settings
from jaxfold.tokenizers.added import merge
from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.common import TableTokenizer
from jaxfold.tokenizers.detokenize import Lead
from jaxfold.tokenizers.detokenize import TokenTable
from jaxfold.tokenizers.detokenize import fill_table
from jaxfold.tokenizers.gguf_bpe import TokenType
from jaxfold.tokenizers.matching import Filled
from jaxfold.tokenizers.spm_model import SPACE

_SPACES = re.compile(r"\s*+")


class SentencePieceTokenizer(TableTokenizer):
    """See the Tokenizer contract. Ids are the library's own, with two rules on top.

    User-defined pieces that look like markup (<think>) are control tokens here: they are parsed in templates and are
    ordinary text in user text; the library itself would match them everywhere. Other user-defined pieces (runs of
    spaces, digits, words) stay as the library has them.

    Text that follows a control token gets no space put before it; only a text that begins with ordinary text does,
    where the model asks for one. That is Hugging Face's behaviour with `legacy=false`.
    """

    def __init__(self, model: Any, settings: Settings, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self.vocab_size = vocab_size
        if len(model.pieces) > vocab_size:
            raise TokenizerError(f"the vocabulary has {len(model.pieces)} pieces, but the model {vocab_size} rows")
        tokens = _control_tokens(model, settings)
        ids = _token_ids(model, settings, tokens)
        usable = [token for token in tokens if ids[token.text] < vocab_size]
        self.special_tokens: Mapping[str, int] = MappingProxyType({token.text: ids[token.text] for token in usable})
        self._finder = ControlFinder(usable)
        inert = _without_control(model, self.special_tokens)
        self._first = _processor(inert)
        inert.normalizer_spec.add_dummy_prefix = False
        self._next = _processor(inert)
        self._table = _token_table(model, usable, ids, vocab_size)
        self.bos_id = self.special_tokens.get(settings.bos or "")
        eos_id = self.special_tokens.get(settings.eos or "")
        self.eos_ids = frozenset(number for number in (*eos_ids, eos_id) if number is not None and number < vocab_size)
        # Without a word on it, a SentencePiece model's prompts begin with BOS, as Hugging Face's do.
        self.add_bos = self.bos_id is not None and settings.add_bos is not False
        self._prefix = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        self._suffix = [eos_id] if settings.add_eos and eos_id is not None else []

    def _encode_filled(self, filled: Filled) -> list[int]:
        """Encodes the text between control tokens piece by piece; only a piece at the very start may get a space."""
        ids: list[int] = []
        at = 0
        for start, end, token in self._finder.find(filled):
            before = filled.text[at:start]
            ids += self._encode_plain(before.rstrip() if token.lstrip else before, at)
            ids.append(self.special_tokens[token.text])
            at = _past_spaces(filled.text, end) if token.rstrip else end
        return ids + self._encode_plain(filled.text[at:], at)

    def _encode_plain(self, text: str, at: int) -> list[int]:
        """Ids of text that stands at position `at` and follows a control token unless that is the start."""
        ids: list[int] = (self._first if at == 0 else self._next).encode(text)
        return ids


def _past_spaces(text: str, at: int) -> int:
    """The position of the first character from `at` on that is no white space."""
    spaces = _SPACES.match(text, at)
    return at if spaces is None else spaces.end()


def _control_tokens(model: Any, settings: Settings) -> list[AddedToken]:
    """Control and unknown pieces, user-defined pieces that look like markup, and what the configuration adds."""
    pieces = {piece.piece: piece.type for piece in model.pieces}
    own = [
        AddedToken(text, special=kind != TokenType.USER_DEFINED)
        for text, kind in pieces.items()
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
    listed = [token for number, token in settings.added if number is not None]
    named = [token for number, token in settings.added if number is None and token.text in pieces]
    tokens = merge((*own, *listed))
    tokens = merge((*tokens.values(), *(token for token in named if token.text not in tokens)))
    special = {token.text for number, token in settings.added if number is None}
    return [
        AddedToken(token.text, True, token.single_word, token.lstrip, token.rstrip) if token.text in special else token
        for token in tokens.values()
        if token.text and (token.control or token.text in special) and pieces.get(token.text) != TokenType.BYTE
    ]


def _token_ids(model: Any, settings: Settings, tokens: Sequence[AddedToken]) -> dict[str, int]:
    """Each control token's id: the model's own for its pieces, the configuration's for the rest."""
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    for number, token in settings.added:
        if number is None or token.text in ids:
            continue
        if number < len(model.pieces):
            taken = model.pieces[number].piece
            raise TokenizerError(f"the added token {token.text!r} has the id {number} of the piece {taken!r}")
        ids[token.text] = number
    return {token.text: ids[token.text] for token in tokens}


def _without_control(model: Any, control: Mapping[str, int]) -> Any:
    """A copy of the model in which no text gives a control token: the library never matches control pieces."""
    inert = type(model)()
    inert.CopyFrom(model)
    for piece in inert.pieces:
        if piece.piece in control and piece.type != TokenType.UNKNOWN:
            piece.type = int(TokenType.CONTROL)
    return inert


def _processor(model: Any) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_proto=model.SerializeToString())
    except (RuntimeError, OSError) as error:
        raise TokenizerError(f"the vocabulary cannot be used: {error}") from None


def _token_table(model: Any, tokens: Sequence[AddedToken], ids: Mapping[str, int], vocab_size: int) -> TokenTable:
    """Bytes of every id. The unknown piece stands for the model's own sign for it."""
    control = {ids[token.text] for token in tokens if token.special}
    verbatim = {ids[token.text] for token in tokens}
    pieces: dict[int, bytes] = {ids[token.text]: token.text.encode() for token in tokens}
    for number, piece in enumerate(model.pieces):
        if piece.type == TokenType.BYTE:
            verbatim.add(number)
            pieces[number] = bytes.fromhex(piece.piece[3:5])
        elif piece.type == TokenType.UNKNOWN:
            pieces[number] = model.trainer_spec.unk_surface.encode()
        elif number not in verbatim:
            pieces[number] = piece.piece.replace(SPACE, " ").encode()
    normalizer = model.normalizer_spec
    lead = Lead.PIECE if normalizer.add_dummy_prefix else Lead.KEEP
    lead = Lead.PIECES if normalizer.remove_extra_whitespaces else lead
    table = fill_table(pieces.items(), vocab_size)
    return TokenTable(table, frozenset(control), frozenset(verbatim), lead)
