"""What the draw keeps on the device for each lane: penalty counts, logit bias, and the tokens drawn so far."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import rows as columns
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.shards import Shard
from jaxfold.runtime.sampling.shards import shard_of


class DrawState(NamedTuple):
    """Lane state of S slots, donated to each draw. W columns of the vocabulary are on this device, V in all.

    `counts` i32[S, W]: how often the reply generated each token, inside the penalty window.
    `bias` f32[S, W]: added to the logits. `last` i32[S]: the token drawn last, input of the next step.
    `history` i32[S, H]: ring of the latest tokens; `length` i32[S]: tokens drawn since the reset.

    H must be at least the longest reply (the context length does): then a window of more than H tokens never
    loses one, and is the same as no window. Split over devices, `counts` and `bias` are split as the logits are.
    """

    counts: Array
    bias: Array
    last: Array
    history: Array
    length: Array


def new_state(slots: int, width: int, history: int) -> DrawState:
    """Empty state for `slots` lanes, `width` columns on this device and replies of at most `history` tokens."""
    return DrawState(
        counts=jnp.zeros((slots, width), jnp.int32),
        bias=jnp.zeros((slots, width), jnp.float32),
        last=jnp.zeros(slots, jnp.int32),
        history=jnp.zeros((slots, max(history, 1)), jnp.int32),
        length=jnp.zeros(slots, jnp.int32),
    )


def reset_slot(
    state: DrawState, slot: Array, last: Array, bias_ids: Array, bias_values: Array, axis: str | None = None
) -> DrawState:
    """Make a slot ready for a new reply, or for the replay of one that was preempted (which draws its tokens again).

    `slot` and `last` i32 scalars (`last`: the token that the first decode step reads, if one comes before a draw);
    `bias_ids` i32[K] padded with -1, ids distinct; `bias_values` f32[K]; `axis` as in `draw`.
    """
    width = state.bias.shape[1]
    place = bias_ids - shard_of(width, None, axis).base
    # A negative index would count from the end: send everything that is not here past the end, where it is dropped.
    place = jnp.where((bias_ids >= 0) & (place >= 0) & (place < width), place, np.int32(width))
    bias = jnp.zeros(width, jnp.float32).at[place].set(bias_values, mode="drop")
    return DrawState(
        counts=lax.dynamic_update_slice(state.counts, jnp.zeros((1, width), jnp.int32), (slot, np.int32(0))),
        bias=lax.dynamic_update_slice(state.bias, bias[None, :], (slot, np.int32(0))),
        last=state.last.at[slot].set(last),
        history=state.history,  # entries past `length` are never read
        length=state.length.at[slot].set(np.int32(0)),
    )


def _adjusts(rows: DrawRows) -> Array:
    words = jnp.asarray(rows.words)
    return (words[:, columns.ADJUSTS] != 0) & (words[:, columns.VALID] != 0)


def any_adjusts(rows: DrawRows) -> Array:
    """Whether some row has a penalty or a bias."""
    return jnp.any(_adjusts(rows))


def any_masked(rows: DrawRows) -> Array:
    """Whether some row has a mask."""
    return jnp.any(jnp.asarray(rows.words)[:, columns.MASKED] != 0)


def masked(logits: Array, mask: Array, rows: DrawRows, shard: Shard) -> Array:
    """Logits f32[R, W], at -inf where a row's mask i32[R, words] has no bit for the token; rows without one as is.

    Token t is bit t % 32 of word t // 32.
    """
    count, width = logits.shape
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.int32)[None, None, :]) & np.int32(1)
    bits = jnp.pad(bits.reshape(count, -1), ((0, 0), (0, width)))
    here = lax.dynamic_slice(bits, (np.int32(0), shard.base), (count, width)) != 0
    free = (jnp.asarray(rows.words)[:, columns.MASKED] == 0)[:, None]
    return jnp.where(here | free, logits, np.float32(element.NEVER))


def adjust(logits: Array, state: DrawState, rows: DrawRows, shard: Shard) -> Array:
    """Logits f32[R, W] after penalties and bias, in float32; rows with nothing set keep their bits.

    With c the token's count, where c > 0: divide a positive logit by `repeat_penalty` and multiply others, subtract
    `presence_penalty`, subtract `frequency_penalty` * c; then add the bias. A row of a verify window counts the drafts
    before it as generated: if one of them is wrong, so is the row, and nobody asks for its token.
    """
    reals = jnp.asarray(rows.reals)
    repeat, presence, frequency = (
        reals[:, column].astype(jnp.float32)[:, None]
        for column in (columns.REPEAT, columns.PRESENCE, columns.FREQUENCY)
    )
    slot = jnp.asarray(rows.words)[:, columns.SLOT].astype(jnp.int32)
    counts, bias = _counts_of(state, rows, shard), state.bias[slot]
    # Without the barriers the compiler may round a product and a subtraction once instead of twice, and a divisor that
    # is a plain broadcast would be turned into a product with its reciprocal.
    positive = logits > 0
    divided = logits / jnp.where(positive, repeat, np.float32(1))
    repeated = element.barrier(jnp.where(positive, divided, logits * repeat))
    charge = element.barrier(frequency * counts.astype(jnp.float32))
    penalised = jnp.where(counts > 0, repeated - presence - charge, logits)
    out = jnp.where(bias != 0, penalised + bias, penalised)
    return jnp.where(_adjusts(rows)[:, None], out, logits)


def before(rows: DrawRows) -> Array:
    """bool[R, R]: whether row r (second axis) entered a draft that row i stands on; i's own draft counts."""
    index = jnp.arange(rows.words.shape[0], dtype=jnp.int32)
    first = index - jnp.asarray(rows.words)[:, columns.COLUMN].astype(jnp.int32)
    return (index[None, :] > first[:, None]) & (index[None, :] <= index[:, None])


def accepted(tokens: Array, rows: DrawRows) -> Array:
    """bool[R]: valid rows whose drafts all are the tokens i32[R] that the rows before them drew."""
    words = jnp.asarray(rows.words)
    drawn = jnp.concatenate([tokens[:1], tokens[:-1]])
    wrong = words[:, columns.DRAFT].astype(jnp.int32) != drawn
    return (words[:, columns.VALID] != 0) & ~jnp.any(before(rows) & wrong[None, :], axis=1)


def _leaving(state: DrawState, tokens: Array, number: Array, slot: Array, window: Array) -> tuple[Array, Array]:
    """What leaves the penalty window when a window's row enters its token, and whether anything does: i32, bool [R].

    `tokens` i32[R] are the ones that enter, `number` i32[R] counts them from 0 in each slot; a `slot` may be past all.
    """
    ring = state.history.shape[1]
    length = state.length.at[slot].get(mode="fill", fill_value=0)
    oldest = length + number - window
    leaves = (window > 0) & (window <= ring) & (oldest >= 0)
    old = state.history.at[slot, jnp.where(leaves, oldest % np.int32(ring), np.int32(0))].get(
        mode="fill", fill_value=-1
    )
    # A window shorter than the round's own tokens loses those again.
    own = jnp.arange(tokens.shape[0], dtype=jnp.int32) - window
    own_token = tokens.at[jnp.where(leaves, own, np.int32(0))].get(mode="fill", fill_value=-1)
    return jnp.where(oldest >= length, own_token, old), leaves


def _counts_of(state: DrawState, rows: DrawRows, shard: Shard) -> Array:
    """Counts i32[R, W] that each row sees: its slot's, with the drafts before it in the window entered."""
    words = jnp.asarray(rows.words)
    slot = words[:, columns.SLOT].astype(jnp.int32)
    draft = words[:, columns.DRAFT].astype(jnp.int32)
    number = words[:, columns.COLUMN].astype(jnp.int32) - 1
    leaving, leaves = _leaving(state, draft, number, slot, words[:, columns.WINDOW].astype(jnp.int32))
    entered = before(rows)
    width = state.counts.shape[1]
    places = jnp.concatenate([draft, leaving]) - shard.base
    places = jnp.where((places >= 0) & (places < width), places, np.int32(width))
    change = jnp.concatenate([entered.astype(jnp.int32), -(entered & leaves[None, :]).astype(jnp.int32)], axis=1)
    row = jnp.broadcast_to(jnp.arange(words.shape[0], dtype=jnp.int32)[:, None], change.shape)
    return state.counts[slot].at[row, jnp.broadcast_to(places[None, :], change.shape)].add(change, mode="drop")


def commit(state: DrawState, tokens: Array, rows: DrawRows, shard: Shard) -> DrawState:
    """Enter the drawn tokens i32[R] of the accepted rows, and let old ones leave the penalty window."""
    words = jnp.asarray(rows.words)
    slots, width = state.counts.shape
    ring = state.history.shape[1]
    kept = accepted(tokens, rows)
    slot = jnp.where(kept, words[:, columns.SLOT].astype(jnp.int32), np.int32(slots))  # past the end: dropped
    number = words[:, columns.COLUMN].astype(jnp.int32)
    follows = jnp.concatenate([kept[1:] & (number[1:] > 0), jnp.zeros(1, bool)])
    leaving, leaves = _leaving(state, tokens, number, slot, words[:, columns.WINDOW].astype(jnp.int32))

    places = jnp.concatenate([tokens, leaving]) - shard.base
    keep = jnp.concatenate([kept, leaves & kept]) & (places >= 0) & (places < width)
    places = jnp.where(keep, places, np.int32(width))
    change = jnp.concatenate([jnp.ones_like(tokens), -jnp.ones_like(tokens)])
    length = state.length.at[slot].get(mode="fill", fill_value=0)
    return DrawState(
        counts=state.counts.at[jnp.concatenate([slot, slot]), places].add(change, mode="drop"),
        bias=state.bias,
        last=state.last.at[jnp.where(follows, np.int32(slots), slot)].set(tokens, mode="drop"),
        history=state.history.at[slot, (length + number) % np.int32(ring)].set(tokens, mode="drop"),
        length=state.length.at[slot].add(np.int32(1), mode="drop"),
    )
