"""The truth in numpy: what every implementation must give, bit for bit."""

import numpy as np

MOST = 8191
"""The largest |q|: 13 bits and a sign, so that the halves of 7 bits are int8."""
SMALLEST = float(np.float32(1e-30))
"""Rows whose largest value is below it count as zeros: their scale would not be a normal float."""


def row_limit(k: int) -> int:
    """The largest |q| for rows of `k` values: the sum of k products with int8 weights stays inside int32."""
    return min(MOST, (2**31 - 1) // (127 * k))


def quantise_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and float32 scales of float32[n, k]: one scale an output channel, ties to even."""
    most = np.abs(weight).max(axis=1)
    scales = (most / np.float32(127.0)).astype(np.float32)
    inverse = np.divide(np.float32(127.0), most, out=np.zeros_like(most), where=most >= np.float32(SMALLEST))
    values = np.rint(weight * inverse[:, None])
    return np.clip(values, -127, 127).astype(np.int8), scales


def quantise_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int16 q and float32 step of float32[rows, k]; `q * step` is close to `x`."""
    limit = np.float32(row_limit(x.shape[1]))
    most = np.abs(x).max(axis=1)
    used = most >= np.float32(SMALLEST)
    inverse = np.divide(limit, most, out=np.zeros_like(most), where=used)
    step = np.where(used, most * (np.float32(1.0) / limit), np.float32(0.0)).astype(np.float32)
    q = np.clip(np.rint(x * inverse[:, None]), -limit, limit)
    return q.astype(np.int16), step


def int8_matmul(x: np.ndarray, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32[rows, k] times int8[n, k] with float32[n] scales: float32[rows, n]."""
    q, step = quantise_rows(x)
    total = q.astype(np.int64) @ values.astype(np.int64).T
    product: np.ndarray = total.astype(np.float32) * (step[:, None] * scales[None, :])
    return product
