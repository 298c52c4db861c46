"""Rows that keep more tokens than the first candidates: the likeliest winners by an f32 bound, then the exact rule.

The noise of a token is at most -ln w, w being 1 minus its uniform number, since -ln u >= 1 - u. So
    bound = (logit - top) / T * log2(e) - log2(w)
is above the token's score (less the top's scaled logit, in units of ln 2), and it needs neither exp nor log: log2 of a
float is at least its bits read as an integer, as the mantissa's chord lies below the curve (by at most 0.0861).
The tokens with the largest bounds are scored exactly; the best kept one among them is the draw if it beats all other
bounds.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import narrow
from jaxfold.runtime.sampling.element import Settings
from jaxfold.runtime.sampling.narrow import Needs
from jaxfold.runtime.sampling.shards import Shard

CONTENDERS = 32
GROUP = 4
LOG2_E = 1.4426950408889634

# A bound in f32 may fall short of its value by 2**-21 * (|d| + 256), d being its first term: three roundings of d, the
# rounding of the bits' conversion (2**-17) and of the sum. The exact score is rounded by 2**-13 at most while
# |scaled top| is below 2**40. For |d| <= 2048 that is 0.002 together; a token with a lower d can not win at all, since
# its score is below -1900 and the top token's, always kept, is above -6.
MARGIN = 2.0**-7
_OPEN, _WON, _FAILED = np.int32(0), np.int32(1), np.int32(2)
# In place of a row's token: not searched yet, and searched in vain.
_LEFT, _NONE = np.int32(-1), np.int32(-2)


class Contenders(NamedTuple):
    """The tokens of the largest bounds, [R, N]: `ids` i32, `values` f32, `scores` f64, `alive` bool (may be kept).

    `beaten` f64[R]: a score above this beats every token that is no contender.
    """

    ids: Array
    values: Array
    scores: Array
    alive: Array
    beaten: Array


class _Progress(NamedTuple):
    """How far the search for the best kept contender is: `alive` bool[G, N], `pick` and `status` i32[G]."""

    alive: Array
    pick: Array
    status: Array


def bounds(logits: Array, top: Array, settings: Settings, shard: Shard) -> Array:
    """Upper bound f32[R, W] of (score - scaled top) / ln 2 of each column."""
    rate = (LOG2_E / settings.temperature).astype(jnp.float32)
    ids = shard.ids(logits.shape[1]).astype(jnp.uint64)
    bits = (~element.mix(settings.key[:, None] ^ ids[None, :])) >> np.uint64(40)
    below = bits.astype(jnp.int32).astype(jnp.float32)  # w >= below * 2**-24
    log2_w = lax.bitcast_convert_type(below, jnp.int32).astype(jnp.float32) * np.float32(2.0**-23) - np.float32(151.0)
    # Where `below` is 0 nothing is known of w; the maximum keeps -inf logits from making NaN of that.
    noise = jnp.where(below == 0, np.float32(np.inf), -log2_w)
    return jnp.maximum((logits - top[:, None]) * rate[:, None], np.float32(-1e38)) + noise


def contenders(logits: Array, top: Array, settings: Settings, shard: Shard) -> Contenders:
    """Score the tokens of the largest bounds of each row, over all devices."""
    # Materialised, since the maximum would not be vectorised with the hash in its loop.
    bound = element.barrier(bounds(logits, top, settings, shard))
    largest, places = candidates.leading(bound, candidates.block_max(bound), CONTENDERS)
    values = jnp.take_along_axis(logits, places, axis=1)
    largest, values, ids = shard.joined(largest), shard.joined(values), shard.joined(shard.base + places)
    if shard.axis is not None:
        largest, order = lax.top_k(largest, min(CONTENDERS, largest.shape[1]))
        order = order.astype(jnp.int32)
        values, ids = (jnp.take_along_axis(x, order, axis=1) for x in (values, ids))
    scaled = element.scale(values, settings.temperature[:, None])
    scaled_top = element.scale(top, settings.temperature)
    scores = element.score(scaled, element.gumbel(settings.key[:, None], ids))
    floor = scaled_top + settings.log_min_p
    alive = ((scaled >= floor[:, None]) | (values == top[:, None])) & (values > element.NEVER)
    beaten = scaled_top + (largest[:, -1].astype(jnp.float64) + MARGIN) / LOG2_E
    return Contenders(ids, values, scores, alive, beaten)


def _pick(found: Contenders, alive: Array) -> tuple[Array, Array]:
    """Column i32 of the best contender alive, and whether it beats all others. [R, N], or [N] for one row."""
    scores = jnp.where(alive, found.scores, element.NEVER)
    best = scores.max(axis=-1)
    # Equal scores: the first in candidate order. `leading` sorts by bound, not by id, so both keys are compared.
    tied = alive & (scores == best[..., None])
    value = jnp.where(tied, found.values, np.float32(element.NEVER)).max(axis=-1)
    tied &= found.values == value[..., None]
    lowest = jnp.where(tied, found.ids, np.int32(2**31 - 1)).min(axis=-1)
    pick = jnp.argmax(tied & (found.ids == lowest[..., None]), axis=-1).astype(jnp.int32)
    return pick, best > found.beaten


def _place(
    logits: Array, top: Array, value: Array, token: Array, settings: Settings, shard: Shard
) -> tuple[Array, Array]:
    """Number (exact; 0 without top_k) and share, f64, of one row's tokens before (value, token) in candidate order."""
    earlier = (logits > value) | ((logits == value) & (shard.ids(logits.shape[0]) < token))
    earlier &= logits > element.NEVER  # hides the padding; no contender is -inf
    share = jnp.where(earlier, narrow.shares(logits, top, settings), np.float32(0))
    number = lax.cond(
        settings.with_top_k(shard.vocab),
        lambda: narrow.share_sum(earlier.astype(jnp.float32)[None, :])[0],
        lambda: jnp.zeros((), jnp.float64),
    )
    return shard.sum(number), shard.sum(narrow.share_sum(share[None, :])[0])


def _search(
    logits: Array, top: Array, wanted: Array, needs: Needs, settings: Settings, shard: Shard
) -> tuple[Array, Array]:
    """Best kept contender of each row of a group: tokens i32[G] and whether each is surely the draw."""
    found = contenders(logits, top, settings, shard)
    pick, beats = _pick(found, found.alive)
    unplaced = settings.with_top_k(shard.vocab) | settings.with_top_p
    status = jnp.where(wanted & beats, jnp.where(unplaced, _OPEN, _WON), _FAILED)
    each_row = jnp.arange(logits.shape[0], dtype=jnp.int32)

    def step(search: _Progress) -> _Progress:
        row = jnp.argmax(search.status == _OPEN).astype(jnp.int32)
        mine, one = element.row_of(settings, row), Contenders(*(x[row] for x in found))
        value, token = one.values[search.pick[row]], one.ids[search.pick[row]]
        rank, share = _place(logits[row], top[row], value, token, mine, shard)
        low, high = narrow.mass_bounds(share, shard.vocab)
        # The top token's share is 1, so a smaller sum means that nothing comes before.
        first, over = share < 0.5, mine.with_top_k(shard.vocab) & (rank >= mine.top_k.astype(jnp.float64))
        kept = first | ~over & (~mine.with_top_p | (high < needs.low[row]))
        cut = ~first & (over | mine.with_top_p & (low >= needs.high[row]))
        # What is cut takes everything after it in candidate order along.
        before = (one.values > value) | ((one.values == value) & (one.ids < token))
        alive = search.alive[row] & before
        again, beats = _pick(one, alive)
        state = jnp.where(kept, _WON, jnp.where(cut & beats, _OPEN, _FAILED))
        here = each_row == row
        return _Progress(
            jnp.where(here[:, None] & cut, alive[None, :], search.alive),
            jnp.where(here & cut, again, search.pick),
            jnp.where(here, state, search.status),
        )

    start = _Progress(found.alive, pick, status)
    end = lax.while_loop(lambda search: jnp.any(search.status == _OPEN), step, start)
    return jnp.take_along_axis(found.ids, end.pick[:, None], axis=1)[:, 0], end.status == _WON


def wide(
    logits: Array, top: Array, wanted: Array, needs: Needs, settings: Settings, shard: Shard
) -> tuple[Array, Array]:
    """Tokens i32[R] and whether each is surely the draw. `wanted` bool[R]; its rows are plain (`narrow.is_plain`).

    The rows that are wanted are taken in groups, so that the cost follows their number.
    """
    size = min(GROUP, logits.shape[0])

    def step(tokens: Array) -> Array:
        _, rows = lax.top_k((tokens == _LEFT).astype(jnp.float32), size)  # the first rows that are left, then others
        rows = rows.astype(jnp.int32)
        before = tokens[rows]
        here = before == _LEFT
        needed = Needs(needs.low[rows], needs.high[rows])
        drawn, won = _search(logits[rows], top[rows], here, needed, element.row_of(settings, rows), shard)
        after = jnp.where(here, jnp.where(won, drawn, _NONE), before)
        return tokens.at[rows].set(after, unique_indices=True)

    tokens = jnp.where(wanted, _LEFT, _NONE)
    tokens = lax.while_loop(lambda tokens: jnp.any(tokens == _LEFT), step, tokens)
    return tokens, tokens != _NONE
