"""The XLA form: rows are put together by expert in tiles of one shape, and every tile is one product.

How many rows an expert has changes how many tiles there are, never their shape; so a row's bits stay what they are. The
loop runs over the tiles in use alone, so an expert that no row goes to is not read.
"""

import jax
import jax.numpy as jnp
from jax import lax

TILE = 16


def expert_matmul(x: jax.Array, weights: jax.Array, expert: jax.Array) -> jax.Array:
    """float[rows, k], float[experts, n, k] of the same dtype, int32[rows]: float32[rows, n]."""
    rows, k = x.shape
    experts, n, _ = weights.shape
    count = jnp.zeros(experts, jnp.int32).at[expert].add(1, mode="promise_in_bounds")
    tiles = (count + (TILE - 1)) // TILE
    end = jnp.cumsum(tiles, dtype=jnp.int32)
    # A row's place among those of its expert is the number of earlier rows that go there.
    order = jnp.argsort(expert, stable=True).astype(jnp.int32)
    first = (jnp.cumsum(count, dtype=jnp.int32) - count).at[expert].get(mode="promise_in_bounds")
    rank = jnp.zeros(rows, jnp.int32).at[order].set(jnp.arange(rows, dtype=jnp.int32), unique_indices=True) - first
    place = (end - tiles).at[expert].get(mode="promise_in_bounds") * TILE + rank

    most = rows // TILE + min(experts, rows)
    owner = jnp.minimum(jnp.searchsorted(end, jnp.arange(most, dtype=jnp.int32), side="right"), experts - 1)
    padded = jnp.zeros((most * TILE, k), x.dtype).at[place].set(x, unique_indices=True, mode="promise_in_bounds")

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        tile = lax.dynamic_slice_in_dim(padded, i * TILE, TILE)
        weight = lax.dynamic_index_in_dim(weights, owner[i], keepdims=False)
        part = lax.dot_general(tile, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(out, part, i * TILE, axis=0)

    out: jax.Array = lax.fori_loop(jnp.int32(0), end[-1], body, jnp.zeros((most * TILE, n), jnp.float32))
    return out.at[place].get(mode="promise_in_bounds")
