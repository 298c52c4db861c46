"""What hosts tell each other, as bytes: a kind, whole numbers, a text, plain arrays. Nothing that is read can run."""

import math
import struct
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any
from typing import Final

import numpy as np

MAX_ARRAYS: Final = 64
MAX_DIMS: Final = 8
_HEAD: Final = struct.Struct("<BBBI")
_INT: Final = struct.Struct("<q")
_ARRAY: Final = struct.Struct("<BB")
_DIM: Final = struct.Struct("<I")
_DTYPES: Final[Mapping[int, np.dtype[Any]]] = MappingProxyType(
    {1: np.dtype("<i4"), 2: np.dtype("<i8"), 3: np.dtype("<f4"), 4: np.dtype("<f8")}
)
_CODES: Final[Mapping[np.dtype[Any], int]] = MappingProxyType({dtype: code for code, dtype in _DTYPES.items()})


class FrameError(ValueError):
    """Bytes that are no message."""


class Kind(IntEnum):
    """What a message is about. The device's calls are those from `STEP` on."""

    BEAT = 1  # nothing: the sender lives
    FACTS = 2  # text: JSON of what must be the same everywhere
    WELCOME = 3  # the facts are accepted
    REFUSED = 4  # text: one sentence
    VALUE = 5  # one number, of which the least counts
    READY = 6  # weights and programs are there
    ENDED = 7  # text: why the sender ends; none where all is well
    STEP = 16
    DRAW = 17
    RESET = 18
    WRITTEN = 19
    REBUILD = 20


@dataclass(frozen=True)
class Message:
    """`numbers` fit 64 bits; `arrays` are of 32- and 64-bit integers and floats."""

    kind: Kind
    numbers: tuple[int, ...] = ()
    text: str = ""
    arrays: tuple[np.ndarray[Any, Any], ...] = ()


def encode(message: Message) -> bytes:
    """The message's bytes: head, numbers, text, then dtype, shape and contents of each array; little-endian."""
    text = message.text.encode()
    out = [_HEAD.pack(message.kind, len(message.numbers), len(message.arrays), len(text))]
    out += [_INT.pack(number) for number in message.numbers]
    out.append(text)
    for array in message.arrays:
        dtype = array.dtype.newbyteorder("<")
        out.append(_ARRAY.pack(_CODES[dtype], array.ndim))
        out += [_DIM.pack(size) for size in array.shape]
        out.append(np.ascontiguousarray(array, dtype).tobytes())
    return b"".join(out)


def decode(payload: bytes) -> Message:
    """The message of these bytes.

    Raises:
        FrameError: they are none.
    """
    read = _Reader(payload)
    kind, numbers, arrays, size = read.unpack(_HEAD)
    if arrays > MAX_ARRAYS:
        raise FrameError(f"{arrays} arrays")
    try:
        known = Kind(kind)
        found = tuple(read.unpack(_INT)[0] for _ in range(numbers))
        text = read.take(size).decode()
    except ValueError as error:
        raise FrameError(str(error)) from None
    message = Message(known, found, text, tuple(_array(read) for _ in range(arrays)))
    if read.left:
        raise FrameError(f"{read.left} bytes behind the message")
    return message


def _array(read: "_Reader") -> np.ndarray[Any, Any]:
    code, dims = read.unpack(_ARRAY)
    if code not in _DTYPES or dims > MAX_DIMS:
        raise FrameError(f"array of kind {code} with {dims} dimensions")
    shape: Sequence[int] = [read.unpack(_DIM)[0] for _ in range(dims)]
    dtype = _DTYPES[code]
    flat: np.ndarray[Any, Any] = np.frombuffer(read.take(math.prod(shape) * dtype.itemsize), dtype)
    return flat.reshape(shape)


class _Reader:
    """Takes bytes from the front; never more than there are."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._payload) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise FrameError(f"{count} bytes are missing")
        self._at += count
        return self._payload[self._at - count : self._at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))
