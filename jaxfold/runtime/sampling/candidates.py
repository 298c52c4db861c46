"""The first candidates of a row, in candidate order (logit descending, then id ascending), without sorting the row."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling.element import NEVER
from jaxfold.runtime.sampling.shards import Shard

BLOCK = 32


class Candidates(NamedTuple):
    """Columns of the best entries of each row: `values` f32[R, C] and `ids` i32[R, C]."""

    values: Array
    ids: Array


def in_blocks(x: Array) -> Array:
    """[R, W] as [R, W / BLOCK, BLOCK]; the width is a multiple of the block."""
    return x.reshape(x.shape[0], -1, BLOCK)


def padded(logits: Array, shard: Shard) -> Array:
    """[R, W] widened to whole blocks, with -inf there and in every column past the vocabulary."""
    width = logits.shape[1]
    spare = -width % BLOCK
    if spare:
        logits = jnp.pad(logits, ((0, 0), (0, spare)), constant_values=NEVER)
    # The columns that `spare` added carry the ids of the next device's first columns: hide them by place.
    if spare or shard.axis is not None or shard.vocab != width:
        place = jnp.arange(width + spare, dtype=jnp.int32)
        real = (place < width) & (shard.base + place < shard.vocab)
        logits = jnp.where(real[None, :], logits, np.float32(NEVER))
    return logits


def block_max(x: Array) -> Array:
    """Largest of each block, [R, W] -> [R, W / BLOCK]."""
    return in_blocks(x).max(axis=-1)


def leading(x: Array, maxima: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row and their columns (f32, i32 [R, count]), ties by the lower column.

    Only the `count` blocks with the largest maxima are looked at (ties by the lower block). That loses nothing: were
    an entry of the answer in a block left out, then each of the blocks taken would hold an entry before
    it, its maximum being larger, or equal and at a lower column: `count` entries before it.
    """
    rows, blocks = maxima.shape
    taken = min(count, blocks)
    _, chosen = lax.top_k(maxima, taken)
    chosen = jnp.sort(chosen.astype(jnp.int32), axis=-1)  # ascending columns, so that the second tie rule holds too
    entries = jnp.take_along_axis(in_blocks(x), chosen[:, :, None], axis=1).reshape(rows, -1)
    values, places = lax.top_k(entries, min(count, entries.shape[1]))
    places = places.astype(jnp.int32)
    block = jnp.take_along_axis(chosen, places // np.int32(BLOCK), axis=1)
    return values, block * np.int32(BLOCK) + places % np.int32(BLOCK)


def offer(logits: Array, maxima: Array, count: int, shard: Shard) -> Candidates:
    """This device's first `count` candidates of each row."""
    values, places = leading(logits, maxima, count)
    return Candidates(values, shard.base + places)


def merge(offered: Candidates, count: int, shard: Shard) -> Candidates:
    """First `count` candidates over all devices. Devices stand in the order of ids, so ties fall as they must."""
    if shard.axis is None:
        return offered
    values, ids = shard.joined(offered.values), shard.joined(offered.ids)
    values, places = lax.top_k(values, min(count, values.shape[1]))
    return Candidates(values, jnp.take_along_axis(ids, places.astype(jnp.int32), axis=1))


def best(logits: Array, maxima: Array, shard: Shard) -> Candidates:
    """The first candidate of each row: `values` and `ids` of shape [R]."""
    block = jnp.argmax(maxima, axis=-1).astype(jnp.int32)
    entries = jnp.take_along_axis(in_blocks(logits), block[:, None, None], axis=1)[:, 0]
    place = jnp.argmax(entries, axis=-1).astype(jnp.int32)
    value = jnp.take_along_axis(entries, place[:, None], axis=1)
    ids = (shard.base + block * np.int32(BLOCK) + place)[:, None]
    values, ids = shard.joined(value), shard.joined(ids)
    device = jnp.argmax(values, axis=-1).astype(jnp.int32)[:, None]
    return Candidates(jnp.take_along_axis(values, device, axis=1)[:, 0], jnp.take_along_axis(ids, device, axis=1)[:, 0])
