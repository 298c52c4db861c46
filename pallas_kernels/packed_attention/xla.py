"""The XLA form: tiles of 16 rows attend to tiles of 16 keys of their own sequence, which begins at a whole tile.

Every product and sum has the shape of a tile, whatever lies around the sequence; a tile of keys past a sequence's end
leaves the running maximum, sum and output of its rows unchanged. How many tiles the longest sequence has is a loop
bound read at run time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ordered import ordered_sum

TILE = 16
NEGATIVE = -1e30


class Fold(NamedTuple):
    """The running state of the online softmax, float32[heads, tiles, TILE] (`out` with dim after)."""

    top: jax.Array
    total: jax.Array
    out: jax.Array


def attend(
    qkv: jax.Array, begin: jax.Array, end: jax.Array, *, heads: int, scale: float, compute: str = "float32"
) -> jax.Array:
    """Attention as in `reference.attend`; products take `compute` dtype.

    Args:
        qkv: float32[rows, 3 * heads * dim], rows a multiple of `TILE`.
        begin, end: int32[rows]; every sequence begins at a multiple of `TILE`, and its last tile is padded.

    Returns:
        float32[rows, heads * dim].
    """
    rows, width = qkv.shape
    dim, tiles = width // (3 * heads), rows // TILE
    split = qkv.reshape(tiles, TILE, 3, heads, dim).transpose(2, 3, 0, 1, 4).astype(jnp.dtype(compute))
    q, k, v = split[0], split[1], split[2]
    first = jnp.max(begin.reshape(tiles, TILE), axis=1) // TILE
    last = jnp.max(end.reshape(tiles, TILE), axis=1)
    stop = jnp.max((last + (TILE - 1)) // TILE - first)

    def body(step: jax.Array, state: Fold) -> Fold:
        place = jnp.minimum(first + step, tiles - 1)
        key = (first + step)[:, None] * TILE + jnp.arange(TILE, dtype=jnp.int32)[None, :]
        bias = jnp.where(key < last[:, None], jnp.float32(0), jnp.float32(NEGATIVE))[None, :, None, :]
        keys = k.at[:, place].get(mode="promise_in_bounds")
        return _fold(state, q, keys, v.at[:, place].get(mode="promise_in_bounds"), bias, scale)

    shape = (heads, tiles, TILE)
    start = Fold(
        jnp.full(shape, NEGATIVE, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, dim), jnp.float32)
    )
    done: Fold = lax.fori_loop(jnp.int32(0), stop, body, start)
    out = done.out / jnp.maximum(done.total, jnp.float32(1e-30))[..., None]
    flat = out.transpose(1, 2, 0, 3).reshape(rows, heads * dim)
    return jnp.where((begin < end)[:, None], flat, jnp.float32(0))


def _fold(state: Fold, q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array, scale: float) -> Fold:
    """One tile of keys: q, k and v [heads, tiles, TILE, dim], bias [1, tiles, 1, TILE]."""
    batch = ((0, 1), (0, 1))
    scores = lax.dot_general(q, k, (((3,), (3,)), batch), preferred_element_type=jnp.float32) * jnp.float32(scale)
    scores = scores + bias
    # Behind a barrier for the same reason as in paged attention: fused, its bits follow the shapes around it.
    top = lax.optimization_barrier(jnp.maximum(state.top, jnp.max(scores, axis=-1)))
    weights = jnp.where(bias < 0, jnp.float32(0), jnp.exp(scores - top[..., None]))
    keep = jnp.exp(state.top - top)
    part = lax.dot_general(weights.astype(v.dtype), v, (((3,), (2,)), batch), preferred_element_type=jnp.float32)
    return Fold(top, state.total * keep + ordered_sum(weights), state.out * keep[..., None] + part)
