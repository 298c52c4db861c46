"""A GGUF checkpoint, in one file or in several parts, presented under Hugging Face names and shapes."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import TensorInfo
from jaxfold.checkpoints.base import TokenizerFiles
from jaxfold.checkpoints.dequantise import dequantise
from jaxfold.checkpoints.files import fingerprint
from jaxfold.checkpoints.gguf_config import ROPE_FACTORS
from jaxfold.checkpoints.gguf_config import Metadata
from jaxfold.checkpoints.gguf_config import hf_config
from jaxfold.checkpoints.gguf_config import hf_names
from jaxfold.checkpoints.gguf_header import GgufHeader
from jaxfold.checkpoints.gguf_header import GgufTensor
from jaxfold.checkpoints.gguf_header import read_header
from jaxfold.checkpoints.gguf_vocabulary import encoder_settings
from jaxfold.checkpoints.gguf_vocabulary import end_ids
from jaxfold.checkpoints.gguf_vocabulary import vocabulary

_PART = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_PLAIN = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
# Families whose query and key rows the converter interleaves, so that RoPE may rotate neighbouring pairs.
_INTERLEAVED = frozenset({"llama"})
# Families whose norms are applied as (1 + weight); the converter stores 1 + weight.
_SHIFTED_NORMS = frozenset({"gemma", "gemma2", "gemma3"})
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


class GgufCheckpoint:
    """A GGUF file opened for reading: see `jaxfold.checkpoints.base.Checkpoint`.

    Headers are read at once, tensors on demand from the mapped file; `read` may be called from several threads.
    Norms that the file stores as 1 + weight come back as float32 weight. Names without a Hugging Face equivalent
    stay as they are; `rope_freqs.weight` is shown as `config["rope_freq_factors"]` instead of as a tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = "gguf"
        headers = [read_header(part) for part in part_paths(path)]
        first = headers[0]
        _check_split(headers)
        places: dict[str, tuple[GgufHeader, GgufTensor]] = {}
        for header in headers:
            for name, tensor in header.tensors.items():
                if name in places:
                    raise CheckpointError(header.path, f"also occurs in {places[name][0].path.name}", name)
                places[name] = (header, tensor)
        self._fields = first.fields
        self._architecture = Metadata(first).architecture
        self.config: Mapping[str, Any] = hf_config(first, {name: place[1] for name, place in places.items()})
        self.model_type: str = self.config["model_type"]
        names = hf_names(self._architecture, self.config.get("num_hidden_layers", 0))
        self._places = {_renamed(name, names): place for name, place in places.items() if name != ROPE_FACTORS}
        if len(self._places) != len(places) - (ROPE_FACTORS in places):
            raise CheckpointError(path, "holds two tensors that stand for the same weight")
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(tensor.shape, tensor.type.name) for name, (_, tensor) in self._places.items()
        }
        template = first.fields.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None
        self.eos_token_ids = end_ids(first.path, first.fields)
        self.generation_config: Mapping[str, Any] = _generation_config(first.fields) | {
            "eos_token_id": list(self.eos_token_ids)
        }
        self.fingerprint = fingerprint((header.path, header.data[: header.header_bytes]) for header in headers)

    @cached_property
    def tokenizer_files(self) -> TokenizerFiles:
        """The file's own vocabulary. Raises CheckpointError where it has none.

        `config` holds what only encoders' vocabularies have, see `encoder_settings`.
        """
        return TokenizerFiles(None, None, vocabulary(self.path, self._fields), encoder_settings(self._fields))

    def read(self, name: str) -> np.ndarray:
        """See `Checkpoint.read`. Plain types are read-only views of the file."""
        if name not in self._places:
            raise CheckpointError(self.path, "is not in the checkpoint", name)
        header, tensor = self._places[name]
        rows = np.frombuffer(header.data, np.uint8, tensor.nbytes, tensor.offset).reshape(-1, tensor.row_bytes)
        heads = self._heads(name)
        if heads:
            count = tensor.shape[0] if tensor.shape else 1
            if count % (2 * heads) or tensor.nbytes % count:
                reason = f"has shape {list(tensor.shape)}, whose rows do not make {heads} heads of even size"
                raise CheckpointError(header.path, reason, name)
            # A bias has one value a row, a matrix one row of blocks: either way whole bytes.
            rows = rows.reshape(count, -1)[half_split_rows(count, heads)]
        values: np.ndarray = self._values(header, tensor, rows)
        if self._architecture in _SHIFTED_NORMS and name.endswith("norm.weight"):
            values = values.astype(np.float32) - np.float32(1)
        return values

    def _heads(self, name: str) -> int:
        """Heads whose rows stand interleaved in this tensor; 0 where none do."""
        if self._architecture not in _INTERLEAVED:
            return 0
        if ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        return int(self.config["num_key_value_heads"]) if ".self_attn.k_proj." in name else 0

    def _values(self, header: GgufHeader, tensor: GgufTensor, rows: np.ndarray) -> np.ndarray:
        plain = _PLAIN.get(tensor.type.name)
        if plain is not None:
            values: np.ndarray = rows.reshape(-1).view(plain)
            return values.reshape(tensor.shape)
        try:
            return dequantise(rows.reshape(-1), tensor.type).reshape(tensor.shape)
        except NotImplementedError:
            reason = f"is stored as {tensor.type.name}, which cannot be dequantised here"
            raise CheckpointError(header.path, reason, tensor.name) from None


def half_split_rows(rows: int, heads: int) -> np.ndarray:
    """Which stored row each row of the [out, in] matrix comes from, int64 [rows].

    In the file a head's rows alternate between its first and its second half (0, d/2, 1, d/2 + 1, ...); here they
    follow each other, so that RoPE rotates the first half against the second.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def part_paths(path: Path) -> list[Path]:
    """The files of the set that `path` is one part of, in order; just `path` for a whole file."""
    match = _PART.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    if not 1 <= int(match["number"]) <= count:
        raise CheckpointError(path, f"is not one of {count} parts")
    for part in parts:
        if not part.is_file():
            raise CheckpointError(part, f"is missing ({path.name} is one of {count} parts)")
    return parts


def _check_split(headers: list[GgufHeader]) -> None:
    fields = headers[0].fields
    claimed = fields.get("split.count", len(headers)) or 1
    if claimed != len(headers):
        reason = f"is one of {claimed} parts; keep the parts' own names (...-00001-of-0000N.gguf) side by side"
        raise CheckpointError(headers[0].path, reason)
    tensors = sum(len(header.tensors) for header in headers)
    if len(headers) > 1 and fields.get("split.tensors.count", tensors) != tensors:
        reason = f"claims {fields['split.tensors.count']} tensors in all parts, which hold {tensors}"
        raise CheckpointError(headers[0].path, reason)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    base, dot, suffix = name.rpartition(".")
    return f"{names[base]}{dot}{suffix}" if base in names else name


def _generation_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling settings that the file recommends, under generation_config.json's names."""
    found = {name: fields[key] for key, name in _SAMPLING.items() if key in fields}
    return {
        name: float(str(np.float32(value))) if isinstance(value, float) else value
        for name, value in found.items()
        if isinstance(value, int | float)
    }
