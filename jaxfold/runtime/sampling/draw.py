"""The keyed draw as one pure function on the device: pruned where that is provably exact, whole where it is not.

Trace and call it under `jax.enable_x64(True)`; that flag belongs to the thread and to the jit key.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import narrow
from jaxfold.runtime.sampling import state as lanes
from jaxfold.runtime.sampling import wide
from jaxfold.runtime.sampling.candidates import Candidates
from jaxfold.runtime.sampling.element import Settings
from jaxfold.runtime.sampling.narrow import Narrowed
from jaxfold.runtime.sampling.narrow import Needs
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.score import Scored
from jaxfold.runtime.sampling.score import score
from jaxfold.runtime.sampling.shards import Shard
from jaxfold.runtime.sampling.shards import shard_of
from jaxfold.runtime.sampling.state import DrawState
from jaxfold.runtime.sampling.whole import draw_whole

FIRST = 64
MORE = 1024

# Which path settled a row.
GREEDY, NARROW, WIDE, WHOLE = range(4)


class Drawn(NamedTuple):
    """`tokens` i32[R]; `state` after them; `paths` i32[R]: GREEDY (also padding), NARROW, WIDE or WHOLE; `scored`."""

    tokens: Array
    state: DrawState
    paths: Array
    scored: Scored


def draw(
    logits: Array,
    state: DrawState,
    rows: DrawRows,
    mask: Array | None = None,
    vocab: int | None = None,
    axis: str | None = None,
) -> Drawn:
    """Draw one token a row by the keyed rule; those that count enter their slots' state. Jit with `state` donated.

    Args:
        logits: f32[R, W]; row i belongs to `rows` i.
        state: lane state of W columns.
        rows: R rows. The valid rows of one slot are one whole verify window: a row's token counts only if all drafts
            before it are what was drawn, and only those tokens are entered (see `state.accepted`).
        mask: i32[R, words], a bit for each token that a row with the word `MASKED` may draw (None: no row has it).
        vocab: ids at or past it are padding columns (None: there are none).
        axis: mesh axis that W splits the vocabulary over, in the order of its indices; `tokens`, `last`, `history`,
            `length` and `rows` are then the same on every device, and the tokens are those of the unsplit draw.

    Raises:
        RuntimeError: traced without 64-bit types.
    """
    if not jax.config.jax_enable_x64:
        raise RuntimeError("the keyed draw is traced under jax.enable_x64(True)")
    count = logits.shape[0]
    if count == 1:
        # With one row the loops over rows would run over a constant, and the compiler would move their bodies out of
        # them: the whole vocabulary in f64, on every draw.
        spare = ((0, 1), (0, 0))
        logits, rows = jnp.pad(logits, spare), DrawRows(jnp.pad(rows.reals, spare), jnp.pad(rows.words, spare))
        mask = None if mask is None else jnp.pad(mask, spare)
    shard = shard_of(logits.shape[1], vocab, axis)

    def adjusted() -> Array:
        changed = lanes.adjust(logits, state, rows, shard)
        return changed if mask is None else lanes.masked(changed, mask, rows, shard)

    # `canonical` inside the branches: a branch that returned its operand would cost a copy.
    row = lax.cond(
        lanes.any_adjusts(rows) if mask is None else lanes.any_adjusts(rows) | lanes.any_masked(rows),
        lambda: element.canonical(candidates.padded(adjusted(), shard)),
        lambda: element.canonical(candidates.padded(logits, shard)),
    )
    tokens, paths = choose(row, element.settings_of(rows), shard)
    scored = jax.tree.map(lambda x: x[:count], score(logits, tokens, rows, shard))
    return Drawn(tokens[:count], lanes.commit(state, tokens, rows, shard), paths[:count], scored)


def choose(row: Array, settings: Settings, shard: Shard) -> tuple[Array, Array]:
    """Tokens and paths i32[R] of adjusted, padded and canonical logits f32[R, W], without touching any state."""
    maxima = candidates.block_max(row)
    best = candidates.best(row, maxima, shard)
    sampled = settings.valid & ~settings.greedy & (best.values > element.NEVER)

    cuts = settings.with_top_k(shard.vocab) | settings.with_top_p | (settings.log_min_p > element.NEVER)
    narrowed = _narrow_stage(row, maxima, best, sampled & cuts, settings, shard)
    settled = sampled & cuts & narrowed.sure
    plain = narrow.is_plain(best.values, settings)
    wanted = sampled & plain & ~(cuts & narrowed.inside)
    wide_tokens, wide_sure = lax.cond(
        jnp.any(wanted),
        lambda: wide.wide(row, best.values, wanted, narrowed.needs, settings, shard),
        lambda: (best.ids, jnp.zeros_like(wanted)),
    )
    won = wanted & wide_sure
    tokens = jnp.where(settled, narrowed.token, jnp.where(won, wide_tokens, best.ids))
    left = sampled & ~settled & ~won
    tokens = _whole_stage(row, maxima, best.values, tokens, left, settings, shard)
    paths = jnp.where(left, WHOLE, jnp.where(won, WIDE, jnp.where(settled, NARROW, GREEDY)))
    return tokens, paths.astype(jnp.int32)


def _first(row: Array, maxima: Array, count: int, shard: Shard) -> Candidates:
    return candidates.merge(candidates.offer(row, maxima, count, shard), count, shard)


def _narrow_stage(
    row: Array, maxima: Array, best: Candidates, wanted: Array, settings: Settings, shard: Shard
) -> Narrowed:
    """What the first candidates settle of the rows that have a cut; anything for others."""

    def first_candidates() -> Narrowed:
        within = settings.with_top_k(shard.vocab) & (settings.top_k <= FIRST)
        whole_mass = wanted & settings.with_top_p & ~within & narrow.is_plain(best.values, settings)
        low, high = narrow.total_bounds(row, best.values, settings, whole_mass, shard)
        return narrow.narrow(_first(row, maxima, FIRST, shard), low, high, settings, shard.vocab)

    def nothing() -> Narrowed:
        no, zero = jnp.zeros_like(wanted), jnp.zeros_like(best.values, jnp.int64)
        return Narrowed(best.ids, no, no, Needs(zero, zero))

    narrowed: Narrowed = lax.cond(jnp.any(wanted), first_candidates, nothing)
    return narrowed


def _whole_stage(
    row: Array, maxima: Array, top: Array, tokens: Array, left: Array, settings: Settings, shard: Shard
) -> Array:
    """Replace the tokens of the rows that are left, one row after the other."""
    each = jnp.arange(tokens.shape[0], dtype=jnp.int32)

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, left = carry
        index = jnp.argmax(left).astype(jnp.int32)
        one = element.row_of(settings, index)

        def many_candidates() -> Array:
            alone = jax.tree.map(lambda x: x[None], one)
            first = _first(row[index][None], maxima[index][None], MORE, shard)
            bound = jnp.zeros(1, jnp.int64)
            return narrow.narrow(first, bound, bound, alone, shard.vocab).token[0]

        within = one.with_top_k(shard.vocab) & (one.top_k <= MORE)
        token = lax.cond(within, many_candidates, lambda: draw_whole(row[index], top[index], one, shard))
        here = each == index
        return jnp.where(here, token, tokens), left & ~here

    return lax.while_loop(lambda carry: jnp.any(carry[1]), step, (tokens, left))[0]
