"""GGUF blocks to float32, through the gguf library's dequantisers, in pieces that stay in the CPU's cache."""

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

# Values a piece. Left alone, the library takes 16 rows at a time: 3 to 10 times slower for narrow matrices.
_PIECE = 1 << 17


def dequantise(raw: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Float32 [values] of contiguous blocks.

    Args:
        raw: uint8 [bytes], whole blocks of `kind`.
        kind: a type that the gguf library can dequantise.

    Raises:
        NotImplementedError: the library has no dequantiser for `kind`.
    """
    block, size = GGML_QUANT_SIZES[kind]
    blocks = raw.reshape(-1, size)
    values = np.empty((len(blocks), block), np.float32)
    step = max(1, _PIECE // block)
    # Damaged scales may be inf or NaN: the values are then too, without a warning from numpy.
    with np.errstate(all="ignore"):
        for first in range(0, len(blocks), step):
            piece = np.ascontiguousarray(blocks[first : first + step]).reshape(1, -1)
            values[first : first + step] = dequantize(piece, kind).reshape(-1, block)
    return values.reshape(-1)
