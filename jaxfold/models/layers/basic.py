"""Norms and activations. Rows stand in axis 0 and never mix."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ordered import ordered_mean


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm (Zhang & Sennrich, arXiv:1910.07467) over the last axis in float32: float[..., n] -> float32[..., n]."""
    x = x.astype(jnp.float32)
    # The mean is materialised: fused into its consumers it may be contracted differently for another row count.
    # So are the squares: fused into the sum's first stage they may be contracted with its additions, or not, by shape.
    mean = lax.optimization_barrier(ordered_mean(lax.optimization_barrier(x * x)))
    scale = lax.rsqrt(mean + jnp.float32(eps))[..., None]
    weight = lax.broadcast_in_dim(weight.astype(jnp.float32), x.shape, (x.ndim - 1,))
    return x * scale * weight


def apart(x: jax.Array) -> jax.Array:
    """`x`, computed on its own: a product that is fused with the addition after it may be rounded once, not twice."""
    alone: jax.Array = lax.optimization_barrier(x)
    return alone


def gated(gate_up: jax.Array, activation: str) -> jax.Array:
    """Gated activation of `gate_up` float32[rows, 2 * n], gate first: float32[rows, n]."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :half], gate_up[:, half:]
    act = jax.nn.silu(gate) if activation == "silu" else jax.nn.gelu(gate, approximate=True)
    return act * up


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Layer norm (Ba et al., arXiv:1607.06450) over the last axis in float32: float[rows, n] -> float32[rows, n]."""
    x = x.astype(jnp.float32)
    # Mean and deviation are materialised for the same reason as the mean of `rms_norm`.
    centred: jax.Array = lax.optimization_barrier(x - lax.optimization_barrier(ordered_mean(x))[:, None])
    variance: jax.Array = lax.optimization_barrier(ordered_mean(centred * centred))
    scale: jax.Array = lax.optimization_barrier(lax.rsqrt(variance + jnp.float32(eps)))
    scaled: jax.Array = lax.optimization_barrier(centred * scale[:, None] * weight[None, :])
    return scaled + bias[None, :]
