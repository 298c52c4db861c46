"""The XLA forms: one product (the CPU path), and one of fixed tiles of rows for compilers that choose by row count."""

import jax
import jax.numpy as jnp
from jax import lax

TILE = 64


def dense_matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """float[rows, k] times float[n, k] of the same dtype: float32[rows, n]. Two rows at least: on a CPU, a lone row
    takes another code path in the compiler, with other bits."""
    contract = (((1,), (1,)), ((), ()))
    return lax.dot_general(x, weight, contract, preferred_element_type=jnp.float32)


def tiled_matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The same in tiles of `TILE` rows: one shape, so one algorithm of the vendor's library, whatever the row count."""
    rows, k = x.shape
    tiles = -(-rows // TILE)
    padded = jnp.pad(x, ((0, tiles * TILE - rows), (0, 0))).reshape(tiles, TILE, k)
    found: jax.Array = lax.map(lambda tile: dense_matmul(tile, weight), padded)
    return found.reshape(tiles * TILE, weight.shape[0])[:rows]
