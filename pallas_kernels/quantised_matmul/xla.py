"""Plain XLA: each row as two rows of int8 (high and low 7 bits), one exact product, joined in int32."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.quantised_matmul.reference import SMALLEST
from pallas_kernels.quantised_matmul.reference import row_limit


def int8_matmul(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
    """float32[rows, k] times int8[n, k] with float32[n] scales: float32[rows, n]."""
    limit = np.float32(row_limit(x.shape[1]))
    # Materialised on both sides: fused with its neighbours the arithmetic may be contracted, with other bits.
    x = lax.optimization_barrier(x)
    most = jnp.max(jnp.abs(x), axis=1)
    used = most >= np.float32(SMALLEST)
    inverse = jnp.where(used, limit / jnp.where(used, most, jnp.float32(1.0)), jnp.float32(0.0))
    step = jnp.where(used, most * (np.float32(1.0) / limit), jnp.float32(0.0))
    q = lax.clamp(-limit, jnp.round(x * inverse[:, None]), limit).astype(jnp.int32)
    halves = jnp.concatenate([(q >> 7).astype(jnp.int8), (q & 127).astype(jnp.int8)])
    sums = lax.dot_general(halves, values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    rows = x.shape[0]
    total = sums[:rows] * 128 + sums[rows:]
    product: jax.Array = lax.optimization_barrier(total.astype(jnp.float32) * (step[:, None] * scales[None, :]))
    return product
