"""The truth: one assignment a row, in numpy. Slow and only for tests."""

from typing import Any

import numpy as np


def write_rows(pages: Any, rows: Any, page: Any, offset: Any) -> np.ndarray:
    """`pages` [kv_heads, pages, page_size, head_dim] with `rows` [n, kv_heads, head_dim] at (`page`, `offset`) [n]."""
    written: np.ndarray = np.array(pages)
    for row, number, place in zip(np.asarray(rows), np.asarray(page), np.asarray(offset), strict=True):
        written[:, number, place] = row.astype(written.dtype)
    return written
