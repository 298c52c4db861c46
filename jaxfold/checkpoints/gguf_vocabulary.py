"""The vocabulary inside a GGUF file: tokens, scores, merges, and which ids end a reply."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import GgufVocabulary

# Control tokens that end a turn though many files declare only the end of the text.
_END_OF_TURN = frozenset({"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"})
_CONTROL_TYPES = (3, 4)  # control, user-defined
# WordPiece and Unigram.
_ENCODER_MODELS = frozenset({"bert", "t5"})
# The published key is spelt "seperator"; newer files have the right spelling too.
_AROUND = (("cls", "cls"), ("bos", "bos"), ("seperator", "seperator"), ("sep", "separator"), ("eos", "eos"))
# BPE pre-tokenizers of the Llama 3 line: their tokenizer adds BOS unless the file says otherwise.
_BOS_PRE = frozenset({"llama3", "llama-v3", "llama-bpe"})


def vocabulary(path: Path, fields: Mapping[str, Any]) -> GgufVocabulary:
    """The `tokenizer.ggml.*` keys with llama.cpp's defaults for the missing ones.

    Raises:
        CheckpointError: there is no vocabulary, or its lists do not belong together.
    """
    tokens = _texts(path, fields, "tokens")
    if not tokens:
        raise CheckpointError(path, "holds no vocabulary (metadata key 'tokenizer.ggml.tokens')")
    model = _text(path, fields, "model")
    pre = _text(path, fields, "pre")
    scores = _numbers(path, fields, "scores", len(tokens))
    types = _numbers(path, fields, "token_type", len(tokens))
    merges = _texts(path, fields, "merges")
    return GgufVocabulary(
        model=model,
        pre=pre,
        tokens=tuple(tokens),
        scores=None if scores is None else tuple(map(float, scores.tolist())),
        token_types=None if types is None else tuple(map(int, types.tolist())),
        merges=None if merges is None else tuple(merges),
        bos_id=token_id(fields, "bos_token_id", len(tokens)),
        eos_id=token_id(fields, "eos_token_id", len(tokens)),
        unk_id=token_id(fields, "unknown_token_id", len(tokens)),
        pad_id=token_id(fields, "padding_token_id", len(tokens)),
        add_bos=_flag(path, fields, "add_bos_token", model == "llama" or pre in _BOS_PRE),
        add_eos=_flag(path, fields, "add_eos_token", False),
        add_space_prefix=_flag(path, fields, "add_space_prefix", model in ("llama", "t5")),
    )


def encoder_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What an encoder's vocabulary has beside the fields of `GgufVocabulary`; empty for the others.

    `charsmap` is SentencePiece's compiled normalisation, `squeeze` whether it also removes extra spaces; `cls_id` and
    `sep_id` stand around a text.
    """
    if fields.get("tokenizer.ggml.model") not in _ENCODER_MODELS:
        return {}
    count = len(fields.get("tokenizer.ggml.tokens", ()))
    charsmap = fields.get("tokenizer.ggml.precompiled_charsmap")
    ids = {name: token_id(fields, f"{key}_token_id", count) for name, key in _AROUND}
    found: dict[str, Any] = {
        "cls_id": ids["cls"] if ids["cls"] is not None else ids["bos"],
        "sep_id": next((ids[name] for name in ("sep", "seperator", "eos") if ids[name] is not None), None),
        "squeeze": bool(fields.get("tokenizer.ggml.remove_extra_whitespaces", False)),
    }
    if isinstance(charsmap, np.ndarray) and charsmap.size:
        found["charsmap"] = charsmap.astype(np.uint8).tobytes()
    return found


def end_ids(path: Path, fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Every id that ends a reply, sorted: the declared ones and the well-known end-of-turn control tokens."""
    tokens = _texts(path, fields, "tokens") or []
    types = _numbers(path, fields, "token_type", len(tokens))
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = {token_id(fields, name, len(tokens)) for name in names} - {None}
    listed = fields.get("tokenizer.ggml.eos_token_ids")
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "iu":
        found |= {int(value) for value in listed if 0 <= value < len(tokens)}
    for index, token in enumerate(tokens):
        if token in _END_OF_TURN and (types is None or types[index] in _CONTROL_TYPES):
            found.add(index)
    return tuple(sorted(value for value in found if value is not None))


def token_id(fields: Mapping[str, Any], name: str, count: int) -> int | None:
    """A special token's id; None when it is missing or past the vocabulary (files write -1 for "none")."""
    value = fields.get(f"tokenizer.ggml.{name}")
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < count else None


def _texts(path: Path, fields: Mapping[str, Any], name: str) -> list[str] | None:
    value = fields.get(f"tokenizer.ggml.{name}")
    if isinstance(value, np.ndarray) and not value.size:
        return []
    if value is not None and not isinstance(value, list):
        raise CheckpointError(path, f"metadata key 'tokenizer.ggml.{name}' should be a list of texts")
    return value


def _numbers(path: Path, fields: Mapping[str, Any], name: str, count: int) -> np.ndarray | None:
    value = fields.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, np.ndarray) or len(value) != count:
        raise CheckpointError(path, f"metadata key 'tokenizer.ggml.{name}' should hold {count} numbers")
    return value


def _text(path: Path, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(f"tokenizer.ggml.{name}", "")
    if not isinstance(value, str):
        raise CheckpointError(path, f"metadata key 'tokenizer.ggml.{name}' should be a text")
    return value


def _flag(path: Path, fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise CheckpointError(path, f"metadata key 'tokenizer.ggml.{name}' should be true or false")
    return value
