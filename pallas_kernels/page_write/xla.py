"""The XLA form, which is the CPU path: one scatter over flat rows."""

import jax
import jax.numpy as jnp


def write_rows(pages: jax.Array, rows: jax.Array, page: jax.Array, offset: jax.Array) -> jax.Array:
    """Write `rows` float[n, kv_heads, head_dim] at (`page` int32[n], `offset` int32[n]); in place where donated.

    Rows that are padding carry page 0, the scratch page; several of them may collide there.
    """
    kv_heads, count, size, dim = pages.shape
    head = jnp.arange(kv_heads, dtype=jnp.int32)[:, None] * (count * size)
    index = (head + (page * size + offset)[None, :]).reshape(-1)
    flat = pages.reshape(kv_heads * count * size, dim)
    update = rows.astype(pages.dtype).transpose(1, 0, 2).reshape(-1, dim)
    return flat.at[index].set(update, mode="promise_in_bounds").reshape(pages.shape)
