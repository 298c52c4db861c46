"""The XLA form, which is the CPU path: keys are folded in fixed blocks by absolute position, pages gathered flat.

A row's bits depend only on its own keys: blocks start at multiples of the block length whatever the lane count, the
window or the table width; a block that is masked for a row leaves its running maximum, sum and output unchanged.
The number of blocks is a loop bound read at run time, so one program serves every context length.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ordered import ordered_sum

BLOCK = 256
NEGATIVE = -1e30


def _gather(pages: jax.Array, ids: jax.Array) -> jax.Array:
    """Pages `ids` int32[lanes, n] of every head as contiguous keys: float[kv_heads, lanes, n * page_size, head_dim]."""
    kv_heads, count, size, dim = pages.shape
    head = jnp.arange(kv_heads, dtype=jnp.int32)[:, None] * count
    flat = (head + ids.reshape(1, -1)).reshape(-1)
    rows = pages.reshape(kv_heads * count, size * dim).at[flat].get(mode="promise_in_bounds")
    return rows.reshape(kv_heads, ids.shape[0], ids.shape[1] * size, dim)


class Fold(NamedTuple):
    """The running state of the online softmax, float32[kv_heads, lanes, group, columns] (`out` with head_dim after)."""

    top: jax.Array
    total: jax.Array
    out: jax.Array


def attend(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    start: jax.Array,
    length: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attention as in `reference.attend`, online softmax over key blocks (Milakov & Gimelshein, arXiv:1805.02867).

    Args:
        q, k_pages, v_pages, table, start, scale, window, soft_cap, sinks: as in `reference.attend`; the table's width
            in keys is a multiple of `BLOCK`.
        length: int32[lanes], valid columns; it only bounds how far the loop runs.

    Returns:
        float32[lanes, columns, heads, head_dim].
    """
    lanes, columns, heads, dim = q.shape
    if columns == 1:
        # A lone query takes another code path in the compiler's products, with other bits: give it company.
        q = jnp.concatenate([q, q], axis=1)
        options: dict[str, Any] = {"scale": scale, "window": window, "soft_cap": soft_cap, "sinks": sinks}
        pair = attend(q, k_pages, v_pages, table, start, length, **options)
        return pair[:, :1]
    kv_heads, group = k_pages.shape[0], heads // k_pages.shape[0]
    grouped = q.reshape(lanes, columns, kv_heads, group, dim).transpose(2, 0, 3, 1, 4)
    position = start[:, None] + jnp.arange(columns, dtype=jnp.int32)[None, :]
    per_block = BLOCK // k_pages.shape[2]

    def body(block: jax.Array, state: Fold) -> Fold:
        ids = lax.dynamic_slice_in_dim(table, block * per_block, per_block, axis=1)
        bias = _bias(block * BLOCK, position, window)
        return _fold(state, grouped, _gather(k_pages, ids), _gather(v_pages, ids), bias, scale, soft_cap)

    shape = (kv_heads, lanes, group, columns)
    first = Fold(
        jnp.full(shape, NEGATIVE, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, dim), jnp.float32)
    )
    if sinks is not None:
        # A sink is a key without a value: it has taken part in the softmax before the first block.
        top = jnp.broadcast_to(sinks.astype(jnp.float32).reshape(kv_heads, 1, group, 1), shape)
        first = first._replace(top=top, total=jnp.ones(shape, jnp.float32))
    stop = (jnp.max(start + length) + (BLOCK - 1)) // BLOCK
    begin = jnp.int32(0) if window is None else jnp.maximum(jnp.min(_live(start, length)) - window, 0) // BLOCK
    last: Fold = lax.fori_loop(begin, stop, body, first)
    out = last.out / jnp.maximum(last.total, jnp.float32(1e-30))[..., None]
    return out.transpose(1, 3, 0, 2, 4).reshape(lanes, columns, heads, dim)


def _fold(
    state: Fold,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array,
    scale: float,
    soft_cap: float | None,
) -> Fold:
    """One block of keys: q [kv_heads, lanes, group, columns, dim], k and v [kv_heads, lanes, BLOCK, dim]."""
    kv_heads, lanes, group, columns, dim = q.shape
    rows = q.reshape(kv_heads, lanes, group * columns, dim)
    scores = lax.dot_general(rows, k, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
    scores = scores.reshape(kv_heads, lanes, group, columns, BLOCK) * jnp.float32(scale)
    if soft_cap is not None:
        scores = jnp.float32(soft_cap) * jnp.tanh(scores * jnp.float32(1.0 / soft_cap))
    scores = scores + bias
    # Without the barrier the maximum is fused into the exponential, and the fold's bits follow the loop's shape.
    top = lax.optimization_barrier(jnp.maximum(state.top, jnp.max(scores, axis=-1)))
    weights = jnp.where(bias < 0, jnp.float32(0), jnp.exp(scores - top[..., None]))
    keep = jnp.exp(state.top - top)
    flat = weights.astype(v.dtype).reshape(kv_heads, lanes, group * columns, BLOCK)
    part = lax.dot_general(flat, v, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
    out = state.out * keep[..., None] + part.reshape(kv_heads, lanes, group, columns, dim)
    return Fold(top, state.total * keep + ordered_sum(weights), out)


def _bias(first: jax.Array, position: jax.Array, window: int | None) -> jax.Array:
    """0 where a key of the block is seen, `NEGATIVE` where not: float32[1, lanes, 1, columns, BLOCK]."""
    key = first + jnp.arange(BLOCK, dtype=jnp.int32)[None, None, :]
    seen = key <= position[:, :, None]
    if window is not None:
        seen &= position[:, :, None] - key < window
    return jnp.where(seen, jnp.float32(0), jnp.float32(NEGATIVE))[None, :, None]


def _live(start: jax.Array, length: jax.Array) -> jax.Array:
    """`start` of the lanes in use; padding lanes must not pull the loop back to block 0."""
    return jnp.where(length > 0, start, jnp.int32(2**30))
