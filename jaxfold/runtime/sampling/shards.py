"""The vocabulary split over devices: each holds a run of columns, and only small results are exchanged."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax


@dataclass(frozen=True)
class Shard:
    """This device's run of columns.

    `vocab` is the whole vocabulary (columns at or past it are padding), `base` (i32 scalar) the id of this
    device's first column, `axis` the mesh axis that the vocabulary is split over (None: one device). Devices
    hold runs in the order of their index on that axis.
    """

    vocab: int
    base: Array
    axis: str | None = None

    def sum(self, x: Array) -> Array:
        """Sum over devices. Only integers, and floats whose use allows for rounding."""
        if self.axis is None:
            return x
        total: Array = lax.psum(x, self.axis)
        return total

    def max(self, x: Array) -> Array:
        if self.axis is None:
            return x
        largest: Array = lax.pmax(x, self.axis)
        return largest

    def joined(self, x: Array) -> Array:
        """Every device's [..., n] side by side along the last axis, in the order of ids."""
        return x if self.axis is None else lax.all_gather(x, self.axis, axis=x.ndim - 1, tiled=True)

    def ids(self, width: int) -> Array:
        """Ids i32[width] of the columns here."""
        return self.base + jnp.arange(width, dtype=jnp.int32)


def shard_of(width: int, vocab: int | None, axis: str | None) -> Shard:
    """The shard that this device holds, `width` columns wide. `vocab` None: all columns are real."""
    if axis is None:
        return Shard(vocab or width, jnp.int32(0))
    base = lax.axis_index(axis).astype(jnp.int32) * np.int32(width)
    return Shard(vocab or width * lax.axis_size(axis), base, axis)
