"""The tokenizer over a tokenizer.json (or a GGUF vocabulary written as one), run by the `tokenizers` library."""

import json
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxfold.tokenizers.added import AddedToken
from jaxfold.tokenizers.added import ControlFinder
from jaxfold.tokenizers.added import Settings
from jaxfold.tokenizers.added import merge
from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.common import TableTokenizer
from jaxfold.tokenizers.decoders import PieceDecoder
from jaxfold.tokenizers.decoders import read_decoder
from jaxfold.tokenizers.detokenize import TokenTable
from jaxfold.tokenizers.detokenize import fill_table
from jaxfold.tokenizers.detokenize import find_run
from jaxfold.tokenizers.matching import Filled
from jaxfold.tokenizers.sealed import Sealed
from jaxfold.tokenizers.sealed import seal


def parse_json(data: bytes) -> dict[str, Any]:
    """The object of a tokenizer.json. Raises TokenizerError when it is not one that can be used."""
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"tokenizer.json is not JSON: {error}") from None
    model = spec.get("model") if isinstance(spec, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    scored = isinstance(vocab, list) and all(isinstance(item, list) and len(item) == 2 for item in vocab)
    if not scored and not isinstance(vocab, dict):
        raise TokenizerError("tokenizer.json holds no model with a vocabulary")
    if not isinstance(spec.get("added_tokens") or [], list):
        raise TokenizerError("added_tokens of tokenizer.json is no list")
    checked: dict[str, Any] = spec
    return checked


class JsonTokenizer(TableTokenizer):
    """See the Tokenizer contract. Ids are the library's own, with its truncation and padding switched off.

    With `parse_special` False no text gives the id of a token in `special_tokens`. Added tokens that are ordinary text
    (runs of spaces, digits, words) are not control tokens and are used for user text too, as the model was trained.
    Control tokens whose id lies beyond the model's rows are ordinary text everywhere.
    """

    def __init__(self, spec: Mapping[str, Any], settings: Settings, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self.vocab_size = vocab_size
        tokens = _added_tokens(spec, settings)
        self._sealed = seal(spec, tokens)
        vocabulary = self._sealed.vocabulary()
        beyond = {token.text for token in tokens if token.control and vocabulary[token.text] >= vocab_size}
        _check_size({text: number for text, number in vocabulary.items() if text not in beyond}, vocab_size)
        usable = [token for token in tokens if token.text not in beyond]
        self._finder = ControlFinder(usable)
        self.special_tokens: Mapping[str, int] = MappingProxyType(
            {token.text: vocabulary[token.text] for token in usable if token.control}
        )
        # The unknown token also stands for characters that the vocabulary lacks, so its number proves nothing.
        self._counted = frozenset(self.special_tokens.values()) - {_unknown_id(spec["model"], vocabulary)}
        self._table = _token_table(read_decoder(spec.get("decoder")), vocabulary, usable, vocab_size)
        self.bos_id = self._special_id(settings.bos, vocabulary)
        eos_id = self._special_id(settings.eos, vocabulary)
        self.eos_ids = frozenset(number for number in (*eos_ids, eos_id) if number is not None and number < vocab_size)
        self._prefix, self._suffix = _surroundings(self._sealed, settings, self.bos_id, eos_id)
        self.add_bos = self.bos_id is not None and self.bos_id in self._prefix

    def _encode_filled(self, filled: Filled) -> list[int]:
        """Puts the secret names of the template's control tokens in and lets the library do the rest."""
        pieces: list[str] = []
        found = self._finder.find(filled)
        at = 0
        for start, end, token in found:
            pieces += (filled.text[at:start], self._sealed.names[token.text])
            at = end
        pieces.append(filled.text[at:])
        ids = self._sealed.backend.encode("".join(pieces), add_special_tokens=False).ids
        expected = sum(self.special_tokens[token.text] in self._counted for _, _, token in found)
        if sum(token_id in self._counted for token_id in ids) != expected:
            raise TokenizerError("the vocabulary's normaliser breaks its own control tokens")
        return ids

    def _special_id(self, text: str | None, vocabulary: Mapping[str, int]) -> int | None:
        token_id = None if text is None else vocabulary.get(text)
        return token_id if token_id is None or token_id < self.vocab_size else None


def _added_tokens(spec: Mapping[str, Any], settings: Settings) -> list[AddedToken]:
    """The file's own added tokens, then those that only the configuration knows. A name such as `bos_token` makes a
    token of the vocabulary special; it does not add one."""
    tokens = merge(AddedToken.read(entry) for entry in spec.get("added_tokens") or ())
    tokens = merge((*tokens.values(), *(token for number, token in settings.added if number is not None)))
    vocab = spec["model"]["vocab"]
    known = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    for number, token in settings.added:
        if number is None and token.text in tokens:
            tokens[token.text] = replace(tokens[token.text], special=True)
        elif number is None and token.text in known:
            tokens[token.text] = token
    return [token for token in tokens.values() if token.text]


def _unknown_id(model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int | None:
    """The id that the model gives to what it has no token for."""
    number = model.get("unk_id")
    return number if isinstance(number, int) else vocabulary.get(str(model.get("unk_token")))


def _check_size(vocabulary: Mapping[str, int], vocab_size: int) -> None:
    text, number = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if number >= vocab_size:
        raise TokenizerError(f"token {text!r} has the id {number}, but the model has only {vocab_size} rows")


def _token_table(
    decoder: PieceDecoder, vocabulary: Mapping[str, int], tokens: Sequence[AddedToken], vocab_size: int
) -> TokenTable:
    """Bytes of every id: control tokens, and with a byte alphabet all added tokens, stand for their own text."""
    own = {token.text for token in tokens if token.control or decoder.alphabet is not None}
    pieces = ((number, text.encode() if text in own else decoder.bytes_of(text)) for text, number in vocabulary.items())
    special = frozenset(vocabulary[token.text] for token in tokens if token.special)
    control = frozenset(vocabulary[token.text] for token in tokens if token.control)
    return TokenTable(fill_table(pieces, vocab_size), special, special | control, decoder.lead)


def _surroundings(
    sealed: Sealed, settings: Settings, bos_id: int | None, eos_id: int | None
) -> tuple[list[int], list[int]]:
    """Ids put before and after a prompt: as the configuration says, else as the file's post-processor does."""
    if settings.add_bos is not None or settings.add_eos is not None:
        prefix = [bos_id] if settings.add_bos and bos_id is not None else []
        return prefix, [eos_id] if settings.add_eos and eos_id is not None else []
    plain, whole = (sealed.backend.encode("a", add_special_tokens=add).ids for add in (False, True))
    for at in find_run(whole, plain):
        return whole[:at], whole[at + len(plain) :]
    raise TokenizerError("the post-processor of tokenizer.json changes the text's own tokens")
