"""Sums whose order is written out, so that a row's bits never depend on the shape around it."""

import jax
import jax.numpy as jnp
from jax import lax

_FAN_IN = 16


def ordered_sum(x: jax.Array) -> jax.Array:
    """Sum of `x` over its last axis in a fixed order: stages of at most 16 terms, each added left to right.

    `jnp.sum` leaves the order to the compiler, which picks it by shape: the same row then gets other bits in
    another batch.  Here the order depends on the length of the axis alone.

    Args:
        x: float[..., n], n >= 1.

    Returns:
        float[...] of the same dtype.
    """
    while x.shape[-1] > 1:
        n = x.shape[-1]
        terms = next((f for f in range(min(_FAN_IN, n), 1, -1) if n % f == 0), n)
        width = n // terms
        total = x[..., :width]
        for i in range(1, terms):
            total = total + x[..., i * width : (i + 1) * width]
        # Each stage is materialised: fused together, every output would inline (and re-add) its whole row.
        x = lax.optimization_barrier(total)
    return x[..., 0]


def ordered_mean(x: jax.Array) -> jax.Array:
    """Mean over the last axis with the sum of `ordered_sum`: float[..., n] -> float[...]."""
    return ordered_sum(x) * jnp.asarray(1.0 / x.shape[-1], x.dtype)
