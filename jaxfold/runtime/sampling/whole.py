"""The rule over a whole row, without sorting it: the exact path for whatever the pruned ones can not settle."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import narrow
from jaxfold.runtime.sampling.element import Settings
from jaxfold.runtime.sampling.shards import Shard

_LOWEST = np.int64(np.iinfo(np.int64).min)


def candidate_order(logits: Array, ids: Array, id_bits: int) -> Array:
    """Distinct integers i64 that fall along candidate order: the first candidate has the largest. [W] each."""
    order = element.order_bits(logits).astype(jnp.int64) << np.int64(id_bits)
    return order | (np.int64((1 << id_bits) - 1) - ids.astype(jnp.int64))


def shortest_prefix(order: Array, weights: Array, need: Array, shard: Shard) -> Array:
    """The largest t with sum(weights[order >= t]) >= need: the last member of the prefix of candidates that reaches `need`.

    `order` and `weights` i64[W], all weights >= 0, and their sum over all devices is at least `need`.
    """

    def narrower(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = high - (high - low) // np.int64(2)
        reached = shard.sum(jnp.where(order >= middle, weights, np.int64(0)).sum())
        enough = reached >= need
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - np.int64(1))

    ends = shard.min(order.min()), shard.max(order.max())
    return lax.while_loop(lambda ends: ends[0] < ends[1], narrower, ends)[0]


def draw_whole(logits: Array, settings: Settings, shard: Shard) -> Array:
    """Token i32 of one sampled row whose top logit is above -inf. `logits` f32[W] canonical, `settings` scalars."""
    ids = shard.ids(logits.shape[0])
    real = logits > element.NEVER  # -inf is never drawn, and stands last: only what is before it counts
    id_bits = max(shard.vocab - 1, 1).bit_length()
    order = candidate_order(logits, ids, id_bits)
    first = shard.max(order.max())
    scaled = element.scale(logits, settings.temperature)
    top = element.scale(shard.max(logits.max()), settings.temperature)

    wanted = jnp.minimum(settings.top_k.astype(jnp.int64), shard.sum(real.sum(dtype=jnp.int64)))
    last = lax.cond(
        narrow.has_top_k(settings, shard.vocab),
        lambda: shortest_prefix(order, real.astype(jnp.int64), wanted, shard),
        lambda: jnp.full((), _LOWEST),
    )
    kept = real & (order >= last)

    def nucleus_end() -> Array:
        masses = jnp.where(kept, element.mass(scaled, top), np.int64(0))
        total = shard.sum(masses.sum())
        need = element.need(total, settings.top_p_mantissa, settings.top_p_shift)
        return shortest_prefix(order, masses, need, shard)

    kept &= order >= lax.cond(narrow.has_top_p(settings), nucleus_end, lambda: jnp.full((), _LOWEST))
    kept &= (scaled >= top + settings.log_min_p) | (order == first)
    scores = jnp.where(kept, element.score(scaled, element.gumbel(settings.key, ids)), element.NEVER)
    best = shard.max(scores.max())
    winner = shard.max(jnp.where(kept & (scores == best), order, _LOWEST).max())
    mask = np.int64((1 << id_bits) - 1)
    return (mask - (winner & mask)).astype(jnp.int32)
