"""Stored matrices behind one interface: plain arrays, and int8 with a scale an output channel."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxfold.models.layers.shards import ALONE
from jaxfold.models.layers.shards import Shards
from pallas_kernels.dense_matmul import dense_matmul
from pallas_kernels.quantised_matmul import int8_matmul


@register_dataclass
@dataclass(frozen=True)
class Int8Matrix:
    """A matrix [n, k] as `values * scales[:, None]`: `values` int8[n, k], `scales` float32[n]."""

    values: jax.Array
    scales: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.values.dtype)


Matrix = jax.Array | Int8Matrix


def take_rows(matrix: Matrix, rows: jax.Array, shards: Shards = ALONE) -> jax.Array:
    """Rows of a table: `rows` int32[r] -> float32[r, k]. Every index is in range; `matrix` is this device's part."""

    def take(place: jax.Array) -> jax.Array:
        if isinstance(matrix, Int8Matrix):
            values = matrix.values.at[place].get(mode="promise_in_bounds").astype(jnp.float32)
            return values * matrix.scales.at[place].get(mode="promise_in_bounds")[:, None]
        return matrix.at[place].get(mode="promise_in_bounds").astype(jnp.float32)

    return shards.looked_up(take, rows, matrix.shape[0])


def linear(x: jax.Array, matrix: Matrix, compute: str) -> jax.Array:
    """`x` float[rows, k] times `matrix` [n, k]: float32[rows, n].

    A plain matrix multiplies in `compute` dtype; an int8 one takes the rows in float32, whatever that is.
    Never called with one row: a lone row takes another code path in the compiler, with other bits.
    """
    if isinstance(matrix, Int8Matrix):
        return int8_matmul(x.astype(jnp.float32), matrix.values, matrix.scales)
    dtype = jnp.dtype(compute)
    return dense_matmul(x.astype(dtype), matrix.astype(dtype))
