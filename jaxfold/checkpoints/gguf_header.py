"""The header of a GGUF file, parsed with every count and offset checked against the file's size.

The gguf library's own reader trusts the counts in the file and needs about 10 s for a vocabulary of 50,000
tokens, so the header is walked here; its type tables and its dequantisers are still the library's.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.files import map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_STRING = 8
_ARRAY = 9
# GGUF value type id -> little-endian numpy type; 7 is a boolean byte.
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8"} | {
    12: "<f8"
}
_BOOL = 7
_SMALLEST_FIELD = 8 + 4 + 1  # an empty key, a type and one byte
_SMALLEST_TENSOR = 8 + 4 + 4 + 8  # an empty name, no dimensions, a type and an offset


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's place: `shape` in numpy order (slowest axis first), `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, i.e. of the last axis."""
        block, size = GGML_QUANT_SIZES[self.type]
        return (self.shape[-1] if self.shape else 1) // block * size


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A parsed file. `fields` values are int, float, bool, str, a list of str, or a 1-D numpy array of numbers."""

    path: Path
    data: memoryview
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    header_bytes: int


class _Cursor:
    """Reads forward through the mapped file; whatever would pass its end is a CheckpointError."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def skip(self, count: int) -> int:
        """Move over `count` bytes and return where they start."""
        start = self.at
        if count > self.left():
            raise CheckpointError(self.path, f"is truncated or corrupt (at byte {start} of {len(self.data)})")
        self.at = start + count
        return start

    def u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self.skip(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self.skip(8))[0])

    def text(self) -> str:
        length = self.u64()
        start = self.skip(length)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(self.path, f"holds a text that is not UTF-8 (at byte {start})") from None

    def numbers(self, kind: int, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[kind])
        start = self.skip(count * dtype.itemsize)
        values = np.frombuffer(self.data, dtype, count, start) if count else np.empty(0, dtype)
        return values != 0 if kind == _BOOL else values


def read_header(path: Path) -> GgufHeader:
    """Map a GGUF file and parse its header; no tensor is read.

    Raises:
        CheckpointError: not GGUF, an unknown version, truncated, or an inconsistent header.
    """
    data = map_file(path)
    if bytes(data[:4]) != MAGIC:
        raise CheckpointError(path, "is not a GGUF file (its first bytes are not 'GGUF')")
    cursor = _Cursor(path, data)
    cursor.skip(4)
    version = cursor.u32()
    if version not in VERSIONS:
        known = "big-endian" if version & 0xFFFF == 0 and version else f"version {version}"
        raise CheckpointError(path, f"is {known} GGUF; little-endian versions 2 and 3 can be read")
    tensor_count = cursor.u64()
    field_count = cursor.u64()
    if field_count > cursor.left() // _SMALLEST_FIELD or tensor_count > cursor.left() // _SMALLEST_TENSOR:
        raise CheckpointError(path, f"is corrupt (it claims {field_count} fields and {tensor_count} tensors)")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = cursor.text()
        if key in fields:
            raise CheckpointError(path, f"is corrupt (metadata key {key!r} occurs twice)")
        fields[key] = _value(cursor, key)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    alignment = _alignment(path, fields)
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(path, data, fields, _place(path, infos, start, alignment, len(data)), cursor.at)


def _value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.u32()
    if kind == _STRING:
        return cursor.text()
    if kind in _NUMBERS:
        return cursor.numbers(kind, 1)[0].item()
    if kind != _ARRAY:
        raise CheckpointError(cursor.path, f"is corrupt (metadata key {key!r} has unknown type {kind})")
    item = cursor.u32()
    count = cursor.u64()
    if item in _NUMBERS:
        return cursor.numbers(item, count)
    if item != _STRING:
        raise CheckpointError(cursor.path, f"metadata key {key!r} is an array of type {item}, which is not known")
    if count > cursor.left() // 8:
        raise CheckpointError(cursor.path, f"is truncated or corrupt (metadata key {key!r} claims {count} texts)")
    return [cursor.text() for _ in range(count)]


def _tensor_info(cursor: _Cursor) -> GgufTensor:
    """One tensor's entry; `offset` is still relative to the data section and `nbytes` is not bounded yet."""
    name = cursor.text()
    rank = cursor.u32()
    if rank > MAX_DIMENSIONS:
        raise CheckpointError(cursor.path, f"has {rank} dimensions; at most {MAX_DIMENSIONS} are possible", name)
    shape = tuple(reversed([cursor.u64() for _ in range(rank)]))
    type_id = cursor.u32()
    offset = cursor.u64()
    try:
        kind = GGMLQuantizationType(type_id)
        block, size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise CheckpointError(cursor.path, f"has an unknown quantisation type (id {type_id})", name) from None
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        raise CheckpointError(cursor.path, f"is empty (its shape is {list(shape)})", name)
    if (shape[-1] if shape else 1) % block:
        raise CheckpointError(cursor.path, f"has rows of {shape[-1:]} values, not whole {kind.name} blocks", name)
    return GgufTensor(name, shape, kind, offset, count // block * size)


def _alignment(path: Path, fields: Mapping[str, Any]) -> int:
    value = fields.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise CheckpointError(path, "is corrupt (general.alignment should be a power of two)")
    return value


def _place(path: Path, infos: list[GgufTensor], start: int, alignment: int, size: int) -> dict[str, GgufTensor]:
    """Absolute offsets, after checking that the tensors lie inside the file, aligned and apart."""
    placed: dict[str, GgufTensor] = {}
    end = start
    for info in sorted(infos, key=lambda info: info.offset):
        begin = start + info.offset
        if info.name in placed:
            raise CheckpointError(path, "occurs twice", info.name)
        if info.offset % alignment:
            raise CheckpointError(path, f"is corrupt (its offset {info.offset} is not aligned)", info.name)
        if begin < end:
            raise CheckpointError(path, "is corrupt (it overlaps another tensor)", info.name)
        end = begin + info.nbytes
        if end > size:
            raise CheckpointError(path, f"is truncated (it ends at byte {end}, the file at {size})", info.name)
        placed[info.name] = GgufTensor(info.name, info.shape, info.type, begin, info.nbytes)
    return placed
