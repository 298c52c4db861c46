"""The truth: attention over pages as plain mathematics, one dense softmax, no blocks. Slow and only for tests."""

import jax
import jax.numpy as jnp

NEGATIVE = -1e30


def attend(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    start: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Attention of every query over the keys at or before its own position, in float32.

    Args:
        q: float[lanes, columns, heads, head_dim]; column j of a lane stands at position `start + j`.
        k_pages, v_pages: float[kv_heads, pages, page_size, head_dim].
        table: int32[lanes, table_width] page numbers in logical order.
        start: int32[lanes], absolute position of column 0.
        scale: factor on the scores.
        window: only keys with `query - key < window` count (None: all).
        soft_cap: scores become `cap * tanh(score / cap)` (None: off).
        sinks: float32[heads], the score of one more key for each head, which has no value (None: no such key).

    Returns:
        float32[lanes, columns, heads, head_dim].
    """
    lanes, columns, heads, dim = q.shape
    kv_heads, _, page, _ = k_pages.shape
    keys = table.shape[1] * page
    k = k_pages[:, table].reshape(kv_heads, lanes, keys, dim).astype(jnp.float32)
    v = v_pages[:, table].reshape(kv_heads, lanes, keys, dim).astype(jnp.float32)
    grouped = q.astype(jnp.float32).reshape(lanes, columns, kv_heads, heads // kv_heads, dim)
    scores = jnp.einsum("nckgd,knsd->nckgs", grouped, k, precision="highest") * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    position = start[:, None] + jnp.arange(columns, dtype=jnp.int32)[None, :]
    key = jnp.arange(keys, dtype=jnp.int32)[None, None, :]
    seen = key <= position[:, :, None]
    if window is not None:
        seen &= position[:, :, None] - key < window
    scores = jnp.where(seen[:, :, None, None, :], scores, NEGATIVE)
    if sinks is not None:
        sink = sinks.reshape(1, 1, kv_heads, heads // kv_heads, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :keys]
    out = jnp.einsum("nckgs,knsd->nckgd", weights, v, precision="highest")
    return out.reshape(lanes, columns, heads, dim)
