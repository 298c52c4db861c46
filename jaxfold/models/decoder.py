"""A dense decoder as pure functions over a weight pytree: the step that every dense family shares.

`forward(weights, cache, plan, cfg) -> (hidden, cache)`; `logits(weights, hidden, cfg)`. The rows of all parts of a
plan are concatenated for norms and products, so that the weights are read once; attention runs per part.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxfold.models.config import DecoderConfig
from jaxfold.models.layers.basic import apart
from jaxfold.models.layers.basic import gated
from jaxfold.models.layers.basic import rms_norm
from jaxfold.models.layers.matrix import Matrix
from jaxfold.models.layers.matrix import linear
from jaxfold.models.layers.matrix import take_rows
from jaxfold.models.layers.rope import rope_table
from jaxfold.models.layers.rope import rotate
from jaxfold.models.layers.shards import ALONE
from jaxfold.models.layers.shards import Shards
from jaxfold.models.params import Param
from jaxfold.models.params import Run
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from pallas_kernels.page_write import write_rows
from pallas_kernels.paged_attention import attend

MIN_ROWS = 2


@register_dataclass
@dataclass(frozen=True)
class Layer:
    """Weights of one block. Products are [out, in]; q, k, v rows are fused in that order, gate before up."""

    attn_norm: jax.Array
    qkv: Matrix
    qkv_bias: jax.Array | None
    q_norm: jax.Array | None
    k_norm: jax.Array | None
    out: Matrix
    out_bias: jax.Array | None
    attn_post_norm: jax.Array | None
    mlp_norm: jax.Array
    gate_up: Matrix
    down: Matrix
    mlp_post_norm: jax.Array | None


@register_dataclass
@dataclass(frozen=True)
class Weights:
    """The model. `head` is None when the embedding serves as output projection."""

    embed: Matrix
    layers: tuple[Layer, ...]
    final_norm: jax.Array
    head: Matrix | None


@register_dataclass
@dataclass(frozen=True)
class Cache:
    """Pages of every layer: keys and values float[kv_heads, pages, page_size, head_dim]."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


def declare(cfg: DecoderConfig) -> Weights:
    """The weight tree with a `Param` in place of each array: the one declaration of shapes and axes."""
    hidden, heads, kv, dim = cfg.hidden_size, cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
    qkv_rows = (heads + 2 * kv) * dim
    qkv_runs = (Run("heads", heads, dim), Run("kv_heads", kv, dim), Run("kv_heads", kv, dim))
    gate_up_runs = (Run("mlp", cfg.intermediate_size), Run("mlp", cfg.intermediate_size))

    def vector(n: int, init: str = "ones") -> Param:
        return Param((n,), (None,), init, "float32")  # type: ignore[arg-type]

    qkv_bias = Param((qkv_rows,), ("heads",), "normal", "float32", qkv_runs)

    def layer() -> Layer:
        return Layer(
            attn_norm=vector(hidden),  # type: ignore[arg-type]
            qkv=Param((qkv_rows, hidden), ("heads", "embed"), fused=qkv_runs),  # type: ignore[arg-type]
            qkv_bias=qkv_bias if cfg.attention_bias else None,  # type: ignore[arg-type]
            q_norm=vector(dim) if cfg.qk_norm else None,  # type: ignore[arg-type]
            k_norm=vector(dim) if cfg.qk_norm else None,  # type: ignore[arg-type]
            out=Param((hidden, heads * dim), ("residual", None)),  # type: ignore[arg-type]
            out_bias=vector(hidden, "normal") if cfg.output_bias else None,  # type: ignore[arg-type]
            attn_post_norm=vector(hidden) if cfg.residual_norms else None,  # type: ignore[arg-type]
            mlp_norm=vector(hidden),  # type: ignore[arg-type]
            gate_up=Param((2 * cfg.intermediate_size, hidden), ("mlp", "embed"), fused=gate_up_runs),  # type: ignore[arg-type]
            down=Param((hidden, cfg.intermediate_size), ("residual", None)),  # type: ignore[arg-type]
            mlp_post_norm=vector(hidden) if cfg.residual_norms else None,  # type: ignore[arg-type]
        )

    table = Param((cfg.vocab_size, hidden), ("vocab", "embed"))
    return Weights(
        embed=table,  # type: ignore[arg-type]
        layers=tuple(layer() for _ in range(cfg.num_layers)),
        final_norm=vector(hidden),  # type: ignore[arg-type]
        head=None if cfg.tied_head else table,  # type: ignore[arg-type]
    )


def new_cache(cfg: DecoderConfig, pages: Mapping[str, int], page_size: int, dtype: jnp.dtype) -> Cache:
    """A zeroed cache with `pages[group]` pages in each layer of that group (page 0 is scratch)."""

    def pool(group: str) -> jax.Array:
        return jnp.zeros((cfg.num_kv_heads, pages[group], page_size, cfg.head_dim), dtype)

    return Cache(tuple(map(pool, cfg.layer_groups)), tuple(map(pool, cfg.layer_groups)))


@register_dataclass
@dataclass(frozen=True)
class _Rows:
    """What a step computes once for all layers: positions, rotary tables and write places of every row."""

    rope: dict[str, tuple[jax.Array, jax.Array]]
    page: dict[str, jax.Array]
    offset: jax.Array


def forward(
    weights: Weights,
    cache: Cache,
    plan: Plan,
    cfg: DecoderConfig,
    last: jax.Array | None = None,
    shards: Shards = ALONE,
) -> tuple[jax.Array, Cache]:
    """One step over every part of the plan.

    On several devices each runs it over its own part of the weights and of the cache; plan and result are the same on
    all.

    Args:
        weights: the model.
        cache: pages; donate it, it is written in place.
        plan: the work; see `jaxfold.models.plan`.
        cfg: static; the heads are those that this device holds.
        last: int32[slots], last token drawn in each slot, read where `tokens` is -1 (None: no such tokens).
        shards: static; the devices that the step is mapped over.

    Returns:
        hidden float32[len(plan.rows), hidden_size] after the final norm, and the cache with the new rows in it.
    """
    size = cache.keys[0].shape[2]
    tokens = jnp.concatenate([_tokens(part, last) for part in plan.parts])
    count = tokens.shape[0]
    rows = _rows(plan, cfg, size)
    with jax.named_scope("embed"):
        x = apart(take_rows(weights.embed, tokens, shards) * jnp.float32(cfg.embed_scale))
    if count < MIN_ROWS:
        x = jnp.concatenate([x] * MIN_ROWS)
    keys, values = list(cache.keys), list(cache.values)
    for i, layer in enumerate(weights.layers):
        with jax.named_scope(f"layer_{i}"):
            group = cfg.layer_groups[i]
            x, keys[i], values[i] = _block(
                x, layer, keys[i], values[i], plan.parts, rows, cfg=cfg, group=group, shards=shards
            )
    with jax.named_scope("final_norm"):
        hidden = x.at[plan.rows].get(mode="promise_in_bounds")
        hidden = rms_norm(hidden, weights.final_norm, cfg.norm_eps)
    return hidden, Cache(tuple(keys), tuple(values))


def logits(weights: Weights, hidden: jax.Array, cfg: DecoderConfig) -> jax.Array:
    """Scores of the next token: `hidden` float32[rows, hidden_size] -> float32[rows, vocab_size].

    With one device's part of the weights: the scores of its part of the vocabulary.
    """
    count = hidden.shape[0]
    if count < MIN_ROWS:
        hidden = jnp.concatenate([hidden] * MIN_ROWS)
    with jax.named_scope("head"):
        scores = linear(hidden, weights.embed if weights.head is None else weights.head, cfg.compute_dtype)[:count]
    if cfg.logit_soft_cap is not None:
        scores = jnp.float32(cfg.logit_soft_cap) * jnp.tanh(scores * jnp.float32(1.0 / cfg.logit_soft_cap))
    return scores


def _tokens(part: Part, last: jax.Array | None) -> jax.Array:
    if last is None:
        return part.tokens.reshape(-1)
    drawn = last.at[part.slot].get(mode="promise_in_bounds")[:, None]
    return jnp.where(part.tokens < 0, drawn, part.tokens).reshape(-1)


def _rows(plan: Plan, cfg: DecoderConfig, size: int) -> _Rows:
    """Positions and write places of all rows; padding rows go to page 0."""
    positions, offsets = [], []
    pages: dict[str, list[jax.Array]] = {group: [] for group in cfg.groups}
    for part in plan.parts:
        column = jnp.arange(part.tokens.shape[1], dtype=jnp.int32)[None, :]
        position = part.start[:, None] + column
        valid = column < part.length[:, None]
        positions.append(position.reshape(-1))
        offsets.append((position % size).reshape(-1))
        for group, table in part.tables.items():
            logical = jnp.where(valid, position // size, 0)
            page = jnp.take_along_axis(table, logical, axis=1, mode="promise_in_bounds")
            pages[group].append(jnp.where(valid, page, 0).reshape(-1))
    position = jnp.concatenate(positions)
    return _Rows(
        rope={group: rope_table(position, cfg.rope_of(group), cfg.head_dim) for group in cfg.groups},
        page={group: jnp.concatenate(found) for group, found in pages.items()},
        offset=jnp.concatenate(offsets),
    )


# Jitted by itself so that equal layers are traced once; the compiler inlines it.
@functools.partial(jax.jit, static_argnames=("cfg", "group", "shards"))
def _block(
    x: jax.Array,
    layer: Layer,
    keys: jax.Array,
    values: jax.Array,
    parts: tuple[Part, ...],
    rows: _Rows,
    *,
    cfg: DecoderConfig,
    group: str,
    shards: Shards,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, keys, values = _attention(x, layer, keys, values, parts, rows, cfg, group, shards)
    return _mlp(x, layer, cfg, shards), keys, values


def _attention(
    x: jax.Array,
    layer: Layer,
    keys: jax.Array,
    values: jax.Array,
    parts: tuple[Part, ...],
    rows: _Rows,
    cfg: DecoderConfig,
    group: str,
    shards: Shards,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention block with its residual: x float32[rows, hidden] -> the same, plus the written pages."""
    count = rows.offset.shape[0]
    with jax.named_scope("qkv"):
        normed = rms_norm(x, layer.attn_norm, cfg.norm_eps)
        qkv = linear(normed, layer.qkv, cfg.compute_dtype)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias[None, :]
        q, k, v = _split_heads(qkv[:count], layer, cfg)
        q, k = rotate(q, rows.rope[group]), rotate(k, rows.rope[group])
    with jax.named_scope("write"):
        keys = write_rows(keys, k, rows.page[group], rows.offset)
        values = write_rows(values, v, rows.page[group], rows.offset)
    with jax.named_scope("attend"):
        out, first = [], 0
        for part in parts:
            lanes, columns = part.tokens.shape
            window = q[first : first + lanes * columns].reshape(lanes, columns, cfg.num_heads, cfg.head_dim)
            first += lanes * columns
            mixed = attend(
                window.astype(keys.dtype),
                keys,
                values,
                part.tables[group],
                part.start,
                part.length,
                scale=cfg.scale,
                window=cfg.groups[group],
                soft_cap=cfg.attention_soft_cap,
            )
            out.append(mixed.reshape(lanes * columns, cfg.num_heads * cfg.head_dim))
        mixed = jnp.concatenate(out)
    with jax.named_scope("out"):
        if count < MIN_ROWS:
            mixed = jnp.concatenate([mixed] * MIN_ROWS)
        # Padded heads are the last: they are dropped before anything is summed over heads.
        mixed = shards.joined(mixed, layer.out.shape[1])
        y = shards.joined(linear(mixed, layer.out, cfg.compute_dtype), x.shape[1])
        if layer.out_bias is not None:
            y = y + layer.out_bias[None, :]
        if layer.attn_post_norm is not None:
            y = apart(rms_norm(y, layer.attn_post_norm, cfg.norm_eps))
    return x + y, keys, values


def _split_heads(qkv: jax.Array, layer: Layer, cfg: DecoderConfig) -> tuple[jax.Array, jax.Array, jax.Array]:
    heads, kv, dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
    split = qkv.reshape(qkv.shape[0], heads + 2 * kv, dim)
    q, k, v = split[:, :heads], split[:, heads : heads + kv], split[:, heads + kv :]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = rms_norm(q, layer.q_norm, cfg.norm_eps), rms_norm(k, layer.k_norm, cfg.norm_eps)
    return q, k, v


def _mlp(x: jax.Array, layer: Layer, cfg: DecoderConfig, shards: Shards) -> jax.Array:
    with jax.named_scope("mlp"):
        normed = rms_norm(x, layer.mlp_norm, cfg.norm_eps)
        inner = gated(linear(normed, layer.gate_up, cfg.compute_dtype), cfg.activation)
        inner = shards.joined(inner, layer.down.shape[1])
        y = shards.joined(linear(inner, layer.down, cfg.compute_dtype), x.shape[1])
        if layer.mlp_post_norm is not None:
            y = apart(rms_norm(y, layer.mlp_post_norm, cfg.norm_eps))
        return x + y
