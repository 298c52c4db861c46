"""The truth in numpy, one row and head at a time, in float64."""

import numpy as np


def attend(qkv: np.ndarray, begin: np.ndarray, end: np.ndarray, *, heads: int, scale: float) -> np.ndarray:
    """Attention of every row to the rows of its own sequence.

    Args:
        qkv: float[rows, 3 * heads * dim]: queries, keys and values of all heads, in that order.
        begin, end: int[rows], first row of the row's sequence and the one after its last; equal where the row is
            padding.

    Returns:
        float64[rows, heads * dim]; zeros where the row is padding.
    """
    rows, width = qkv.shape
    q, k, v = (part.reshape(rows, heads, -1) for part in np.split(qkv.astype(np.float64), 3, axis=1))
    out = np.zeros((rows, heads, width // 3 // heads))
    for t in range(rows):
        seen = slice(int(begin[t]), int(end[t]))
        for h in range(heads) if begin[t] < end[t] else ():
            scores = k[seen, h] @ q[t, h] * scale
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ v[seen, h] / weights.sum()
    return out.reshape(rows, -1)
