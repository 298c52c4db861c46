"""Log-probabilities of a row's tokens: the raw distribution at temperature 1, before penalties, bias and masks.

A token's log-probability is its logit minus `total`, the logarithm of the sum of all exponentials. That sum is one of
integers, as in the nucleus, so its bits depend on the row alone.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import rows as columns
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.shards import Shard

TOP = 20
"""Likeliest tokens that come with a row."""


class Scored(NamedTuple):
    """What a row's log-probabilities are made of; anything for rows that do not ask.

    `chosen` f32[R] is the logit of the drawn token, or of the row's target; `total` f64[R] what every logit is taken
    against; `values` f32[R, TOP] and `ids` i32[R, TOP] are the likeliest tokens in candidate order.
    """

    chosen: Array
    total: Array
    values: Array
    ids: Array


def score(logits: Array, tokens: Array, rows: DrawRows, shard: Shard) -> Scored:
    """Of raw logits f32[R, W] and drawn tokens i32[R]. Without a row that asks it costs nothing."""
    words = jnp.asarray(rows.words)

    def scored() -> Scored:
        row = element.canonical(candidates.padded(logits, shard))
        maxima = candidates.block_max(row)
        first = candidates.merge(candidates.offer(row, maxima, TOP, shard), TOP, shard)
        top = first.values[:, :1].astype(jnp.float64)
        # A row without any finite logit has no distribution; its masses must still be numbers.
        top = jnp.where(top > element.NEVER, top, 0.0)
        mass = shard.sum(element.exact_sum(element.barrier(element.mass(row.astype(jnp.float64), top))))
        total = top[:, 0] + jnp.log(mass.astype(jnp.float64)) - math.log(element.MASS_ONE)
        target = words[:, columns.TARGET].astype(jnp.int32)
        place = jnp.where(target > 0, target - 1, tokens) - shard.base
        here = (place >= 0) & (place < logits.shape[1])
        found = jnp.take_along_axis(row, jnp.where(here, place, np.int32(0))[:, None], axis=1)[:, 0]
        return Scored(shard.max(jnp.where(here, found, np.float32(element.NEVER))), total, first.values, first.ids)

    def nothing() -> Scored:
        count = logits.shape[0]
        return Scored(
            jnp.zeros(count, jnp.float32),
            jnp.zeros(count, jnp.float64),
            jnp.zeros((count, TOP), jnp.float32),
            jnp.zeros((count, TOP), jnp.int32),
        )

    done: Scored = lax.cond(jnp.any(words[:, columns.SCORED] != 0), scored, nothing)
    return done
