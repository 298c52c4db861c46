"""The header of a safetensors file, with every length, shape and offset checked against the file's size.

The safetensors library's numpy front end cannot give bfloat16 or a mapped view, so the (small) header is read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.files import map_file
from jaxfold.checkpoints.files import parse_json

MAX_HEADER_BYTES = 100_000_000  # the library's own limit
MAX_DIMENSIONS = 16
_MAX_BYTES = 1 << 46

STORED_TYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor's place: `begin` and `end` in bytes from the file's start."""

    stored: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A mapped file and what its header says."""

    path: Path
    data: memoryview
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    header_bytes: int

    def read(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in its stored type."""
        place = self.tensors[name]
        dtype = STORED_TYPES[place.stored]
        raw = np.frombuffer(self.data[place.begin : place.end], np.uint8)
        return raw.view(dtype).reshape(place.shape)


def read_header(path: Path) -> SafetensorsFile:
    """Map a safetensors file and check its header; no tensor is read.

    Raises:
        CheckpointError: not safetensors, truncated, or an inconsistent header.
    """
    data = map_file(path)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(path, f"is not a safetensors file or is truncated ({len(data)} bytes)")
    header = parse_json(path, bytes(data[8 : 8 + length]))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(path, "is corrupt (its metadata should map texts to texts)")
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_layout(path, tensors, 8 + length, len(data))
    return SafetensorsFile(path, data, tensors, metadata, 8 + length)


def _tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        stored, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(path, "is corrupt (its header entry is incomplete)", name) from None
    if not isinstance(stored, str) or stored not in STORED_TYPES:
        raise CheckpointError(path, f"has an unknown type ({stored!r:.40})", name)
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, [*shape, begin, end])):
        raise CheckpointError(path, "is corrupt (its shape or offsets are not whole numbers)", name)
    itemsize = STORED_TYPES[stored].itemsize
    count = itemsize
    widest = itemsize
    for extent in shape:
        count *= extent
        widest *= max(extent, 1)  # an empty array may still claim axes that numpy cannot index
    if end - begin != count or widest > _MAX_BYTES:
        raise CheckpointError(path, f"is corrupt ({stored} {shape} in {end - begin} bytes)", name)
    return StoredTensor(stored, tuple(shape), start + begin, start + end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], start: int, size: int) -> None:
    """The tensors must fill the file from the header's end to the last byte, without gaps or overlaps."""
    at = start
    for name, place in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if place.begin != at:
            raise CheckpointError(path, "is corrupt (it overlaps another tensor or leaves a gap)", name)
        if place.end > size:
            raise CheckpointError(path, f"is truncated (it ends at byte {place.end}, the file at {size})", name)
        at = place.end
    if at != size:
        raise CheckpointError(path, f"is corrupt ({size - at} bytes after the last tensor)")
