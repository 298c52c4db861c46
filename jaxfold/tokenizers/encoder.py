"""Tokenizers of encoders: WordPiece and Unigram vocabularies, with the ids that stand around a text."""

import base64
import json
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Library

from jaxfold.tokenizers.base import TokenizerError
from jaxfold.tokenizers.detokenize import find_run
from jaxfold.tokenizers.gguf_bpe import TokenType
from jaxfold.tokenizers.gguf_bpe import token_types
from jaxfold.tokenizers.sealed import build_library
from jaxfold.tokenizers.sources import GgufSource
from jaxfold.tokenizers.sources import TokenizerSource

SPACE = "\u2581"
_PLAIN: Mapping[str, bool] = MappingProxyType(
    {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
)


@dataclass(frozen=True)
class Around:
    """The ids put before and after a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


class EncoderTokenizer:
    """Texts to ids. The library's own truncation and padding are off: the caller sees every token of a text."""

    def __init__(self, library: Library, vocab_size: int) -> None:
        library.no_truncation()
        library.no_padding()
        size = max(library.get_vocab().values(), default=-1) + 1
        if size > vocab_size:
            raise TokenizerError(f"the tokenizer has {size} ids, but the model has only {vocab_size} rows")
        self._library = library
        self.vocab_size = vocab_size
        self.around = _around(library)

    def encode(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """Ids of each text with the ids around it.

        `most` cuts what lies between these, so that no result is longer and each still ends as it should.
        """
        before, after = self.around.before, self.around.after
        room = None if most is None else max(0, most - len(self.around))
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[*before, *encoding.ids[:room], *after] for encoding in found]


def load_encoder_tokenizer(files: TokenizerSource, vocab_size: int) -> EncoderTokenizer:
    """The tokenizer of an encoder's checkpoint: its tokenizer.json, or the vocabulary of its GGUF file.

    Raises:
        TokenizerError: there is none that is supported, or it does not fit the model.
    """
    if files.gguf is not None:
        spec = gguf_spec(files.gguf, files.config)
    elif files.tokenizer_json is not None:
        try:
            spec = json.loads(files.tokenizer_json)
        except (ValueError, RecursionError):
            raise TokenizerError("tokenizer.json is not usable JSON") from None
        if not isinstance(spec, dict):
            raise TokenizerError("tokenizer.json should hold a JSON object")
    else:
        raise TokenizerError("an encoder needs a tokenizer.json: a tokenizer.model alone does not say how it is used")
    return EncoderTokenizer(build_library({**spec, "truncation": None, "padding": None}), vocab_size)


def gguf_spec(vocabulary: GgufSource, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json object that a GGUF file's "bert" (WordPiece) or "t5" (Unigram) vocabulary stands for.

    Args:
        settings: `charsmap`, `squeeze`, `cls_id` and `sep_id`, as the GGUF reader gives them.
    """
    if vocabulary.model not in ("bert", "t5"):
        known = "bert and t5 are"
        raise TokenizerError(f"GGUF vocabularies of the kind {vocabulary.model!r} are no encoder's ({known})")
    types = token_types(vocabulary)
    tokens = list(vocabulary.tokens)
    spec = _wordpiece(tokens, types) if vocabulary.model == "bert" else _unigram(vocabulary, settings)
    start, end = (
        _id_of(settings.get("cls_id"), tokens, "[CLS]", "<s>"),
        _id_of(settings.get("sep_id"), tokens, "[SEP]", "</s>"),
    )
    special = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    added = {number for number, kind in enumerate(types) if kind in special} | {start, end}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": tokens[number], "special": True, **_PLAIN} for number in sorted(added)
        ],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special(tokens[start]), {"Sequence": {"id": "A", "type_id": 0}}, _special(tokens[end])],
            "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")],
            "special_tokens": {
                tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
                for number in (start, end)
            },
        },
        "decoder": None,
        **spec,
    }


def _special(text: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": text, "type_id": 0}}


def _id_of(given: Any, tokens: Sequence[str], *usual: str) -> int:
    """The id that the file names, else that of the usual text."""
    if isinstance(given, int):
        return given
    found = next((tokens.index(text) for text in usual if text in tokens), None)
    if found is None:
        raise TokenizerError(f"the GGUF vocabulary has no {usual[0]} and no {usual[1]}")
    return found


def _wordpiece(tokens: list[str], types: Sequence[TokenType]) -> dict[str, Any]:
    """WordPiece. The file writes a word's first piece with U+2581 before it and later pieces bare."""
    vocab: dict[str, int] = {}
    for number, text in enumerate(tokens):
        if types[number] is TokenType.NORMAL and not (text.startswith("[") and text.endswith("]") and len(text) > 2):
            text = text[1:] if text.startswith(SPACE) else f"##{text}"
        vocab.setdefault(text, number)
        tokens[number] = text
    # The file does not say whether case counts; a vocabulary with capital letters would be useless if it did not.
    lower = not any(text.lower() != text for text in vocab if not text.startswith("["))
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def _unigram(vocabulary: GgufSource, settings: Mapping[str, Any]) -> dict[str, Any]:
    """SentencePiece's Unigram: the compiled normalisation, then the best segmentation by the pieces' scores."""
    if vocabulary.scores is None:
        raise TokenizerError("the GGUF vocabulary is Unigram but has no scores")
    steps: list[dict[str, Any]] = []
    charsmap = settings.get("charsmap")
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if settings.get("squeeze"):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    scheme = "always" if vocabulary.add_space_prefix else "never"
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True},
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unk_id,
            "vocab": [[text, score] for text, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _around(library: Library) -> Around:
    """What the post-processor puts around a text."""
    plain, whole = (library.encode("a", add_special_tokens=add).ids for add in (False, True))
    for at in find_run(whole, plain):
        return Around(tuple(whole[:at]), tuple(whole[at + len(plain) :]))
    raise TokenizerError("the post-processor of tokenizer.json changes the text's own tokens")
