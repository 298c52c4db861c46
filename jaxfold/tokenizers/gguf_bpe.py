"""GGUF vocabularies of the GPT-2 kind (byte-level BPE), written as the tokenizer.json that they stand for."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from jaxfold.tokenizers.added import Settings
from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.pretokenizers import find_pre_tokenizer
from jaxfold.tokenizers.sources import GgufSource

_NO_FLAGS: Mapping[str, bool] = MappingProxyType(
    {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
)


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; the numbers are SentencePiece's own."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def token_types(vocabulary: GgufSource) -> list[TokenType]:
    """A type for each token. The ids that the file names as BOS and EOS are control tokens whatever their types say.

    Raises TokenizerError for lists of unequal length, an unknown type, an id out of range or a token listed twice.
    """
    size = len(vocabulary.tokens)
    given = vocabulary.token_types if vocabulary.token_types is not None else [TokenType.NORMAL] * size
    if len(given) != size:
        raise TokenizerError(f"the GGUF vocabulary has {size} tokens but {len(given)} token types")
    if unknown := set(given) - set(TokenType):
        raise TokenizerError(f"the GGUF vocabulary has the token type {min(unknown)}, which does not exist")
    repeated = [text for text, count in Counter(vocabulary.tokens).items() if count > 1]
    if repeated:
        raise TokenizerError(f"the GGUF vocabulary lists the token {repeated[0]!r} twice")
    types = [TokenType(kind) for kind in given]
    for number in (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, vocabulary.unk_id):
        if number is not None and not 0 <= number < size:
            raise TokenizerError(f"the GGUF vocabulary names the id {number}, but has only {size} tokens")
    for number in (vocabulary.bos_id, vocabulary.eos_id):
        if number is not None and types[number] is not TokenType.UNKNOWN:
            types[number] = TokenType.CONTROL
    return types


def gguf_settings(vocabulary: GgufSource) -> Settings:
    """The file's BOS and EOS, in the form of tokenizer_config.json."""
    named = (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id)
    bos, eos, unk = (None if number is None else vocabulary.tokens[number] for number in named)
    return Settings((), bos, eos, unk, vocabulary.add_bos, vocabulary.add_eos)


def bpe_spec(vocabulary: GgufSource) -> dict[str, Any]:
    """The tokenizer.json object of a "gpt2" vocabulary. Unused tokens are left out: no text gives them."""
    if vocabulary.merges is None:
        raise TokenizerError("the GGUF vocabulary is byte-level BPE but has no merges")
    pre_tokenizer = find_pre_tokenizer(vocabulary.pre)
    types = token_types(vocabulary)
    kept = {text: number for number, text in enumerate(vocabulary.tokens) if types[number] is not TokenType.UNUSED}
    return {
        "version": "1.0",
        "added_tokens": _added(vocabulary.tokens, types),
        "normalizer": {"type": "NFC"} if pre_tokenizer.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [dict(step) for step in pre_tokenizer.steps]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": kept,
            "merges": list(vocabulary.merges),
            "ignore_merges": pre_tokenizer.ignore_merges,
        },
    }


def _added(tokens: Sequence[str], types: Sequence[TokenType]) -> list[dict[str, Any]]:
    """Control, unknown and user-defined tokens as added tokens; the first two are special."""
    return [
        {"id": number, "content": text, "special": kind is not TokenType.USER_DEFINED, **_NO_FLAGS}
        for number, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
