"""A text encoder as pure functions over a weight pytree: the BERT block, and sequences pooled to one vector each.

`encode(weights, batch, cfg) -> vectors`. The rows of all sequences of a batch lie one after the other, without padding
between them: norms and products see rows, attention sees each row's own sequence.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from jaxfold.models.layers.basic import layer_norm
from jaxfold.models.layers.matrix import Matrix
from jaxfold.models.layers.matrix import linear
from jaxfold.models.layers.matrix import take_rows
from jaxfold.models.params import Param
from pallas_kernels.packed_attention import attend

Pooling = Literal["mean", "cls", "last"]
Activation = Literal["gelu", "gelu_tanh", "relu"]

POOL_STEP = 16
"""Rows that are added to a sequence's sum in one step of the loop."""


@dataclass(frozen=True)
class EncoderConfig:
    """An encoder with absolute positions, post-norm blocks and a plain MLP (BERT, RoBERTa and their kin).

    `max_position` is how many tokens a sequence may have; the row of position p in the table is `position_offset` + p.
    `compute_dtype` is what products take in; norms, softmax and the residual stream are float32 always.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    max_position: int
    position_offset: int = 0
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@register_dataclass
@dataclass(frozen=True)
class EncoderLayer:
    """Weights of one block. Products are [out, in]; the rows of q, k and v are fused in that order."""

    qkv: Matrix
    qkv_bias: jax.Array
    out: Matrix
    out_bias: jax.Array
    attn_norm: jax.Array
    attn_norm_bias: jax.Array
    up: Matrix
    up_bias: jax.Array
    down: Matrix
    down_bias: jax.Array
    mlp_norm: jax.Array
    mlp_norm_bias: jax.Array


@register_dataclass
@dataclass(frozen=True)
class EncoderWeights:
    """The model. `kind` is the row that every token of a text without a second part adds (token type 0)."""

    embed: Matrix
    positions: jax.Array
    kind: jax.Array
    norm: jax.Array
    norm_bias: jax.Array
    layers: tuple[EncoderLayer, ...]


@register_dataclass
@dataclass(frozen=True)
class Batch:
    """Sequences in one array of `rows` rows. Padding rows have `begin` = `end` = 0; unused places have `length` 0.

    Attributes:
        tokens: int32[rows], ids.
        position: int32[rows], place in the row's own sequence.
        begin, end: int32[rows], first row of the row's sequence and the one after its last.
        first, length: int32[places], first row and length of each sequence.
    """

    tokens: jax.Array
    position: jax.Array
    begin: jax.Array
    end: jax.Array
    first: jax.Array
    length: jax.Array


def declare_encoder(cfg: EncoderConfig) -> EncoderWeights:
    """The weight tree with a `Param` in place of each array: the one declaration of shapes and axes."""
    hidden, inner = cfg.hidden_size, cfg.intermediate_size

    def vector(n: int, init: str = "normal") -> Any:
        return Param((n,), (None,), init, "float32")  # type: ignore[arg-type]

    def matrix(out: int, into: int, axis: str) -> Any:
        return Param((out, into), (axis, None))

    layer = EncoderLayer(
        qkv=matrix(3 * hidden, hidden, "heads"),
        qkv_bias=vector(3 * hidden),
        out=matrix(hidden, hidden, "embed"),
        out_bias=vector(hidden),
        attn_norm=vector(hidden, "ones"),
        attn_norm_bias=vector(hidden),
        up=matrix(inner, hidden, "mlp"),
        up_bias=vector(inner),
        down=matrix(hidden, inner, "embed"),
        down_bias=vector(hidden),
        mlp_norm=vector(hidden, "ones"),
        mlp_norm_bias=vector(hidden),
    )
    return EncoderWeights(
        embed=matrix(cfg.vocab_size, hidden, "vocab"),
        positions=Param((cfg.position_offset + cfg.max_position, hidden), (None, None), dtype="float32"),  # type: ignore[arg-type]
        kind=vector(hidden),
        norm=vector(hidden, "ones"),
        norm_bias=vector(hidden),
        layers=(layer,) * cfg.num_layers,
    )


def encode(weights: EncoderWeights, batch: Batch, cfg: EncoderConfig) -> jax.Array:
    """Pooled outputs, not normalised: float32[places, hidden_size]; zeros for places without a sequence."""
    with jax.named_scope("embed"):
        x = take_rows(weights.embed, batch.tokens)
        x = x + weights.positions.at[batch.position + cfg.position_offset].get(mode="promise_in_bounds")
        x = layer_norm(x + weights.kind[None, :], weights.norm, weights.norm_bias, cfg.norm_eps)
    for i, layer in enumerate(weights.layers):
        with jax.named_scope(f"layer_{i}"):
            x = _block(x, layer, batch.begin, batch.end, cfg=cfg)
    with jax.named_scope("pool"):
        return _pool(x, batch, cfg.pooling)


# Jitted by itself so that equal layers are traced once; the compiler inlines it.
@functools.partial(jax.jit, static_argnames="cfg")
def _block(x: jax.Array, layer: EncoderLayer, begin: jax.Array, end: jax.Array, *, cfg: EncoderConfig) -> jax.Array:
    """One block, post-norm: x float32[rows, hidden] -> the same."""
    compute, eps = cfg.compute_dtype, cfg.norm_eps
    with jax.named_scope("attention"):
        qkv = linear(x, layer.qkv, compute) + layer.qkv_bias[None, :]
        mixed = attend(qkv, begin, end, heads=cfg.num_heads, scale=cfg.head_dim**-0.5, compute=compute)
        y = linear(mixed, layer.out, compute) + layer.out_bias[None, :]
        x = layer_norm(x + y, layer.attn_norm, layer.attn_norm_bias, eps)
    with jax.named_scope("mlp"):
        inner = _ACTIVATIONS[cfg.activation](linear(x, layer.up, compute) + layer.up_bias[None, :])
        y = linear(inner, layer.down, compute) + layer.down_bias[None, :]
        return layer_norm(x + y, layer.mlp_norm, layer.mlp_norm_bias, eps)


def _gelu(x: jax.Array) -> jax.Array:
    return x * jnp.float32(0.5) * (jnp.float32(1.0) + lax.erf(x * jnp.float32(2.0**-0.5)))


_ACTIVATIONS: Mapping[str, Any] = {
    "gelu": _gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


def _pool(x: jax.Array, batch: Batch, pooling: Pooling) -> jax.Array:
    """float32[rows, hidden] -> float32[places, hidden]; a mean adds a sequence's rows one after the other."""
    here = (batch.length > 0)[:, None]
    if pooling != "mean":
        row = batch.first if pooling == "cls" else batch.first + jnp.maximum(batch.length, 1) - 1
        return jnp.where(here, x.at[row].get(mode="promise_in_bounds"), jnp.float32(0))

    def add(step: jax.Array, total: jax.Array) -> jax.Array:
        for i in range(POOL_STEP):
            at = step * POOL_STEP + i
            row = jnp.minimum(batch.first + at, x.shape[0] - 1)
            found = x.at[row].get(mode="promise_in_bounds")
            total = total + jnp.where((at < batch.length)[:, None], found, jnp.float32(0))
        return total

    steps = (jnp.max(batch.length) + (POOL_STEP - 1)) // POOL_STEP
    total: jax.Array = lax.fori_loop(jnp.int32(0), steps, add, jnp.zeros((batch.length.shape[0], x.shape[1])))
    return total / jnp.maximum(batch.length, 1).astype(jnp.float32)[:, None]
