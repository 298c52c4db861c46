"""The contract of a checkpoint on disk, whatever its format: names, shapes, arrays and side files.

Every reader presents the checkpoint under Hugging Face names: tensors as `model.layers.0.self_attn.q_proj.weight`
in [out, in] layout, settings as `config.json` would hold them. A GGUF reader translates on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Protocol

import numpy as np


class CheckpointError(Exception):
    """A checkpoint that cannot be used. The message is one sentence and names the file (and tensor)."""

    def __init__(self, path: Path | str, reason: str, tensor: str | None = None) -> None:
        self.path = str(path)
        self.tensor = tensor
        self.reason = reason
        where = f"{path}: tensor {tensor!r}" if tensor else str(path)
        super().__init__(f"{where}: {reason}")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape ([out, in] order, as numpy would see it) and the stored type's name, e.g. "Q4_1" or "BF16"."""

    shape: tuple[int, ...]
    stored: str


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The `tokenizer.ggml.*` keys of a GGUF file. `model` is "gpt2", "llama", ...; `pre` names the pre-tokenizer."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...] | None
    token_types: tuple[int, ...] | None
    merges: tuple[str, ...] | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Where the vocabulary comes from: exactly one of the three first fields is set.

    `config` is tokenizer_config.json merged with special_tokens_map.json and added_tokens.json (empty for GGUF).
    """

    tokenizer_json: bytes | None
    sentencepiece: bytes | None
    gguf: GgufVocabulary | None
    config: Mapping[str, Any]


class Checkpoint(Protocol):
    """An opened checkpoint. Opening reads headers only; `read` reads one tensor."""

    path: Path
    format: str  # "gguf", "safetensors" or "orbax"
    model_type: str  # as in config.json, e.g. "llama", "qwen3", "gemma3_text"
    config: Mapping[str, Any]  # config.json, or its equivalent made from GGUF metadata
    tensors: Mapping[str, TensorInfo]  # by Hugging Face name
    tokenizer_files: TokenizerFiles
    chat_template: str | None
    generation_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]  # union of config, generation_config and the vocabulary's end ids
    fingerprint: str  # hex; changes when any file of the checkpoint changes (sizes, mtimes, headers)

    def read(self, name: str) -> np.ndarray:
        """One tensor, dequantised: float32 for quantised types, else its stored dtype (ml_dtypes.bfloat16 included).

        Raises:
            CheckpointError: the tensor is missing, truncated or of a type that cannot be read.
        """
        ...
