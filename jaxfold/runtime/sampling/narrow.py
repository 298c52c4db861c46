"""Rows whose kept tokens lie within their first candidates: the whole rule in f64 over these candidates."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling.candidates import Candidates
from jaxfold.runtime.sampling.element import Settings
from jaxfold.runtime.sampling.shards import Shard

# How far an f32 sum of exp((logit - top) / T) may lie from its value, relatively, for T and top as `is_plain` says.
# Let d = (logit - top) / T. A token with d < -28 has mass 0, and its f32 term is below 1.01 * 2**-40: `SLACK` * V
# units of 2**-40 cover all of these, and the units that `floor` drops. For the others the subtraction, 1/T and the
# product in f32 each err by 2**-24 of d, the rounding of `scaled` in f64 by 2**-27 of d (two different f32 logits
# differ by 2**-24 of the larger one): 28 * 4 * 2**-24 = 2**-17.2 of the term. exp in f32 is taken to be right to 2**-18
# (XLA: 2**-22), a block's sum of 32 terms to 31 * 2**-24 = 2**-19.04 in any order, and the sums over blocks in f64 do
# not matter. Together 2**-16.3, below RELATIVE.
RELATIVE = 2.0**-15
SLACK = 2.0

PLAIN_SCALED = 2.0**40
PLAIN_TEMPERATURE = 2.0**20


class Needs(NamedTuple):
    """Bounds i64[R] of the mass that top_p asks for."""

    low: Array
    high: Array


class Narrowed(NamedTuple):
    """What the first candidates settle, columns of [R].

    `token` i32; `sure`: it is the draw; `inside`: all kept tokens are candidates (so a wider search would not help).
    """

    token: Array
    sure: Array
    inside: Array
    needs: Needs


def is_plain(top: Array, settings: Settings) -> Array:
    """Whether f32 estimates hold their bounds for rows with this top logit."""
    small = jnp.abs(element.scale(top, settings.temperature)) <= PLAIN_SCALED
    return small & (settings.temperature <= PLAIN_TEMPERATURE)


def shares(logits: Array, top: Array, settings: Settings) -> Array:
    """exp((logit - top) / T) in f32; [R, W] with [R], or [W] with scalars."""
    rate = (1.0 / settings.temperature).astype(jnp.float32)
    return jnp.exp((logits - top[..., None]) * rate[..., None])


def share_sum(shares_: Array) -> Array:
    """Sum f64[R] of f32[R, W], by blocks in f32 and then over blocks in f64."""
    # The barrier keeps the terms out of the sum's loop, which would not be vectorised with them in it.
    blocks = candidates.in_blocks(element.barrier(shares_)).sum(axis=-1)
    return blocks.astype(jnp.float64).sum(axis=-1)


def mass_bounds(share: Array, vocab: int) -> tuple[Array, Array]:
    """Bounds i64 of an exact sum of masses whose f32 estimate is `share` (f64)."""
    middle = share * element.MASS_ONE
    low = middle * (1.0 - RELATIVE) - SLACK * vocab
    high = middle * (1.0 + RELATIVE) + SLACK * vocab
    return jnp.maximum(jnp.floor(low), 0.0).astype(jnp.int64), jnp.ceil(high).astype(jnp.int64)


def total_bounds(logits: Array, top: Array, settings: Settings, wanted: Array, shard: Shard) -> tuple[Array, Array]:
    """Bounds i64[R] of the mass of the whole vocabulary; the trivial ones for rows that are not `wanted`."""
    highest = np.int64(shard.vocab) << np.int64(40)

    def measured() -> tuple[Array, Array]:
        low, high = mass_bounds(shard.sum(share_sum(shares(logits, top, settings))), shard.vocab)
        return jnp.where(wanted, low, np.int64(0)), jnp.where(wanted, high, highest)

    def trivial() -> tuple[Array, Array]:
        return jnp.zeros_like(top, jnp.int64), jnp.full_like(top, highest, jnp.int64)

    bounds: tuple[Array, Array] = lax.cond(jnp.any(wanted), measured, trivial)
    return bounds


def narrow(first: Candidates, low: Array, high: Array, settings: Settings, vocab: int) -> Narrowed:
    """Draw each row from its first candidates, given bounds of its whole mass.

    A row that top_k does not keep within the candidates has an exact total only as an interval, hence a
    kept set between two: if both draw the same token, that is the draw.
    """
    values, ids = first
    count = values.shape[1]
    place = jnp.arange(count, dtype=jnp.int32)[None, :]
    scaled = element.scale(values, settings.temperature[:, None])
    top = scaled[:, :1]
    limit = jnp.where(settings.with_top_k(vocab), settings.top_k, np.int32(vocab))
    in_top_k = place < limit[:, None]
    masses = jnp.where(in_top_k, element.mass(scaled, top), np.int64(0))
    reached = jnp.cumsum(masses, axis=1)
    here = reached[:, -1]
    before = reached - masses

    covered = limit <= count
    low = jnp.where(covered | (limit < vocab), here, jnp.maximum(low, here))
    high = jnp.where(covered, here, jnp.maximum(high, here))
    needs = Needs(settings.need(low), settings.need(high))
    floor = top + settings.log_min_p[:, None]
    uncut = ~settings.with_top_p[:, None]
    may = in_top_k & (scaled >= floor)
    surely = may & (uncut | (before < needs.low[:, None])) | (place == 0)
    maybe = may & (uncut | (before < needs.high[:, None])) | (place == 0)
    inside = covered | (settings.with_top_p & (here >= needs.high)) | (scaled[:, -1] < floor[:, 0])

    scores = element.score(scaled, element.gumbel(settings.key[:, None], ids))
    drawn = jnp.argmax(jnp.where(surely, scores, element.NEVER), axis=1)
    other = jnp.argmax(jnp.where(maybe, scores, element.NEVER), axis=1)
    token = jnp.take_along_axis(ids, drawn[:, None], axis=1)[:, 0]
    return Narrowed(token, inside & (drawn == other), inside, needs)
