"""A step that runs on several devices at once, as one of them sees it: what layers exchange, and nothing on one device.

Matrices are split along their outputs and every device sums whole rows, so no sum is ever spread over devices and
bits do not depend on how many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Shards:
    """`axis` is the mesh axis that the step is mapped over (None: one device, and every method is the identity)."""

    axis: str | None = None

    def joined(self, x: jax.Array, width: int) -> jax.Array:
        """Each device's columns side by side: `x` float[rows, n] -> float[rows, width], without the padding behind."""
        if self.axis is None:
            return x
        whole: jax.Array = lax.all_gather(x, self.axis, axis=1, tiled=True)
        return whole[:, :width]

    def looked_up(self, take: Callable[[jax.Array], jax.Array], rows: jax.Array, height: int) -> jax.Array:
        """`take(rows)` float32[r, k] for `rows` int32[r] of a table that is split into `height` rows a device.

        `take` is called with rows of this device's own part.
        """
        if self.axis is None:
            return take(rows)
        place = rows - lax.axis_index(self.axis).astype(jnp.int32) * jnp.int32(height)
        here = (place >= 0) & (place < height)
        found = take(jnp.where(here, place, jnp.int32(0)))
        # Summed as integers, all but one of them 0: the bits arrive as they are, a negative zero's too.
        bits = jnp.where(here[:, None], lax.bitcast_convert_type(found, jnp.int32), jnp.int32(0))
        whole: jax.Array = lax.bitcast_convert_type(lax.psum(bits, self.axis), jnp.float32)
        return whole


ALONE = Shards()
"""One device."""
