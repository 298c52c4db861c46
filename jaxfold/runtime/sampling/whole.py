"""The rule over a whole row, without sorting it: the exact path for whatever the pruned ones can not settle."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling.element import Settings
from jaxfold.runtime.sampling.shards import Shard

_BEFORE_ALL = -np.inf


def candidate_order(logits: Array, ids: Array, id_bits: int) -> Array:
    """Distinct integers, as exact f64[W], that fall along candidate order: the first candidate has the largest."""
    order = element.order_bits(logits).astype(jnp.int64) << np.int64(id_bits)
    return (order | (np.int64((1 << id_bits) - 1) - ids.astype(jnp.int64))).astype(jnp.float64)


def prefix_end(order: Array, weights: Array, need: Array, wanted: Array, id_bits: int, shard: Shard) -> Array:
    """Order f64 of the last member of the shortest prefix of candidates whose weights reach `need`.

    `weights` i64[W] >= 0. The end of the range, below all candidates, if they never reach it or it is not `wanted`.
    """

    def halve(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = high - (high - low) // np.int64(2)
        held = jnp.where(order >= middle.astype(jnp.float64), weights, np.int64(0))
        enough = shard.sum(element.exact_sum(held)) >= need
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - np.int64(1))

    # The largest t whose weights at and above it reach the need, by bisection.
    bound = np.int64(1 << (31 + id_bits))
    ends = lax.while_loop(lambda ends: wanted & (ends[0] < ends[1]), halve, (jnp.full((), -bound), jnp.full((), bound)))
    return ends[0].astype(jnp.float64)


def draw_whole(logits: Array, top: Array, settings: Settings, shard: Shard) -> Array:
    """Token i32 of one sampled row: `logits` f32[W] canonical, `top` f32 the largest on any device, above -inf."""
    ids = shard.ids(logits.shape[0])
    real = logits > element.NEVER  # -inf is never drawn, and stands last: only what is before it counts
    id_bits = max(shard.vocab - 1, 1).bit_length()
    order = candidate_order(logits, ids, id_bits)
    scaled, scaled_top = (element.scale(x, settings.temperature) for x in (logits, top))
    masses = element.barrier(element.mass(scaled, scaled_top))

    def cut(which: Array, last: Array) -> Array:
        by_count = which == 0
        weights = jnp.where(real & (order >= last), jnp.where(by_count, np.int64(1), masses), np.int64(0))
        total = shard.sum(element.exact_sum(weights))
        # At least one token: a top_p of 0 needs no mass at all, but the first candidate's is there.
        need = jnp.where(by_count, settings.top_k.astype(jnp.int64), jnp.maximum(settings.need(total), np.int64(1)))
        wanted = jnp.where(by_count, settings.with_top_k(shard.vocab), settings.with_top_p)
        return jnp.maximum(last, prefix_end(order, weights, need, wanted, id_bits, shard))

    last = lax.fori_loop(0, 2, cut, jnp.full((), _BEFORE_ALL))  # first top_k, then top_p among what it keeps
    kept = real & (order >= last) & ((scaled >= scaled_top + settings.log_min_p) | (logits == top))
    scores = jnp.where(kept, element.score(scaled, element.gumbel(settings.key, ids)), element.NEVER)
    scores = element.barrier(scores)
    best = shard.max(scores.max())
    winner = shard.max(jnp.where(kept & (scores == best), order, _BEFORE_ALL).max()).astype(jnp.int64)
    mask = np.int64((1 << id_bits) - 1)
    return (mask - (winner & mask)).astype(jnp.int32)
