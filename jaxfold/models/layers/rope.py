"""Rotary position embedding (Su et al., arXiv:2104.09864), half-split form as in Hugging Face checkpoints."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfold.models.config import ConfigError
from jaxfold.models.config import RopeConfig


def rope_table(position: jax.Array, rope: RopeConfig, head_dim: int) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines at `position` int32[rows]: two float32[rows, head_dim / 2], once per step and group."""
    inverse = 1.0 / (rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim))
    inverse = inverse / np.asarray(rope.factors, np.float64)
    angle = position.astype(jnp.float32)[:, None] * jnp.asarray(inverse, jnp.float32)[None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate `x` float32[rows, heads, head_dim] by the row's table."""
    cos, sin = table[0][:, None, :], table[1][:, None, :]
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def scaling_factors(config: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """The divisors of the inverse frequencies that `rope_scaling` asks for: none, "linear" or "llama3".

    Raises:
        ConfigError: a scaling this code does not know; running without it would give wrong text in silence.
    """
    half = head_dim // 2
    explicit = config.get("rope_freq_factors")
    if explicit is not None:
        if len(explicit) != half:
            raise ConfigError(f"rope_freq_factors has {len(explicit)} entries for head_dim {head_dim}")
        return tuple(float(f) for f in explicit)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "none", None):
        return (1.0,) * half
    if kind == "linear":
        return (float(scaling["factor"]),) * half
    if kind == "llama3":
        return _llama3_factors(scaling, theta, half)
    raise ConfigError(f"rope scaling {kind!r} is not supported (known: linear, llama3)")


def _llama3_factors(scaling: Mapping[str, Any], theta: float, half: int) -> tuple[float, ...]:
    """Llama 3.1's rule: long wavelengths divided by `factor`, short ones kept, a linear ramp of 1/f between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    factors = []
    for i in range(half):
        wavelength = 2 * math.pi * theta ** (i / half)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / factor + smooth))
    return tuple(factors)
