"""The JSON and tokenizer files that stand beside the weights in a Hugging Face directory."""

import math
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import TokenizerFiles
from jaxfold.checkpoints.files import parse_json
from jaxfold.checkpoints.files import read_json

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_JSON = "tokenizer.json"
SENTENCEPIECE = "tokenizer.model"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
TEMPLATE = "chat_template.jinja"
PROCESSOR_TEMPLATE = "chat_template.json"
SIDE_FILES = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_JSON,
    SENTENCEPIECE,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    TEMPLATE,
    PROCESSOR_TEMPLATE,
)

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "vocab_size",
)
_NUMBERS = ("rms_norm_eps", "rope_theta", "query_pre_attn_scalar", "rope_local_base_freq")
_MAX_SIZE = 1 << 31
# Of a multimodal wrapper's own settings, these also hold for its text model.
_SHARED_WITH_TEXT = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")


def optional_json(path: Path) -> dict[str, Any]:
    """The file's object, or an empty one where there is no file."""
    return read_json(path) if path.is_file() else {}


def model_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What `config.json` at `path` says; of a multimodal wrapper, the settings of its text model.

    Raises:
        CheckpointError: no model_type, or a size that cannot be.
    """
    text = config.get("text_config")
    if isinstance(text, dict):
        shared = {key: config[key] for key in _SHARED_WITH_TEXT if key in config}
        config = {"model_type": config.get("model_type")} | shared | text
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(path, "names no model_type")
    for key in _SIZES:
        value = config.get(key)
        if value is not None and (not _is_int(value) or not 0 < value < _MAX_SIZE):
            raise CheckpointError(path, f"{key} should be a positive whole number, not {value!r:.40}")
    for key in _NUMBERS:
        value = config.get(key)
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise CheckpointError(path, f"{key} should be a positive number, not {value!r:.40}")
    return config


def tokenizer_settings(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, with added_tokens.json under the key "added_tokens"."""
    settings = optional_json(directory / SPECIAL_TOKENS) | optional_json(directory / TOKENIZER_CONFIG)
    added = optional_json(directory / ADDED_TOKENS)
    return settings | ({"added_tokens": added} if added else {})


def tokenizer_files(directory: Path, settings: Mapping[str, Any]) -> TokenizerFiles:
    """tokenizer.json, else tokenizer.model.

    Raises:
        CheckpointError: the directory has neither.
    """
    for name in (TOKENIZER_JSON, SENTENCEPIECE):
        path = directory / name
        if path.is_file():
            raw = path.read_bytes()
            is_json = name == TOKENIZER_JSON
            return TokenizerFiles(raw if is_json else None, None if is_json else raw, None, settings)
    raise CheckpointError(directory, f"has no tokenizer ({TOKENIZER_JSON} or {SENTENCEPIECE})")


def chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The default template: chat_template.jinja, tokenizer_config.json's, or chat_template.json's."""
    path = directory / TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(path, "is not UTF-8 text") from None
    for value in (settings.get("chat_template"), optional_json(directory / PROCESSOR_TEMPLATE).get("chat_template")):
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            if isinstance(named.get("default"), str):
                return str(named["default"])
    return None


def eos_ids(directory: Path, settings: Mapping[str, Any], *sources: tuple[Path, Mapping[str, Any]]) -> tuple[int, ...]:
    """Every id that ends a reply, sorted: `eos_token_id` of each source and the tokenizer's own eos token.

    Args:
        directory: where tokenizer.json or tokenizer.model is, for the id of an eos token known by its text.
        settings: what `tokenizer_settings` gave.
        *sources: config.json and generation_config.json with their contents.
    """
    found: set[int] = set()
    for path, source in sources:
        value = source.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_int(token) and token >= 0 for token in listed):
            raise CheckpointError(path, f"eos_token_id should be an id or a list of ids, not {value!r:.40}")
        found.update(listed)
    token = settings.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str):
        found.update(_ids_of(directory, settings, text))
    return tuple(sorted(found))


def _ids_of(directory: Path, settings: Mapping[str, Any], text: str) -> Iterable[int]:
    """The id of a token known by its text, as zero or one item; the cheap places first."""
    decoder = settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and entry.get("content") == text and str(key).isdecimal():
            return [int(key)]
    added = settings.get("added_tokens")
    if isinstance(added, dict) and _is_int(added.get(text)):
        return [int(added[text])]
    if (directory / TOKENIZER_JSON).is_file():
        return _in_tokenizer_json(directory / TOKENIZER_JSON, text)
    if (directory / SENTENCEPIECE).is_file():
        return _in_sentencepiece(directory / SENTENCEPIECE, text)
    return []


def _in_tokenizer_json(path: Path, text: str) -> Iterable[int]:
    tokenizer = parse_json(path, path.read_bytes())
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and entry.get("content") == text and _is_int(entry.get("id")):
            return [int(entry["id"])]
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    value = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return [value] if isinstance(value, int) else []


def _in_sentencepiece(path: Path, text: str) -> Iterable[int]:
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_proto=path.read_bytes())
    except RuntimeError:
        raise CheckpointError(path, "is not a SentencePiece model") from None
    value = processor.piece_to_id(text)
    return [] if value == processor.unk_id() else [value]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
