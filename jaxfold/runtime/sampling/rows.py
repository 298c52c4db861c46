"""Settings of one reply's draw, prepared once, and the fixed-shape rows that one draw is called with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxfold.runtime.api import SamplingParams

# Columns of `DrawRows.reals`.
TEMPERATURE, TOP_P, LOG_MIN_P, REPEAT, PRESENCE, FREQUENCY = range(6)
REALS = 6
# Columns of `DrawRows.words`.
SEED, TOP_P_MANTISSA, TOP_P_SHIFT, TOP_K, WINDOW, ADJUSTS, POSITION, SLOT, VALID, COLUMN, DRAFT = range(11)
SCORED, TARGET, MASKED = range(11, 14)
WORDS = 14

BIAS_LIMIT = 1024
_MASK_64 = (1 << 64) - 1
_MAX_INT32 = (1 << 31) - 1


class DrawRows(NamedTuple):
    """One row for each token to draw, as two plain arrays so that a call carries few buffers.

    `reals` f64[R, 6] and `words` i64[R, 14] (the seed as the int64 of the same bits); the columns are
    the constants of this module. A row whose `VALID` word is 0 is padding.

    Log-probabilities of a row are made where `SCORED` is not 0: of the token `TARGET` - 1, or of the drawn one where
    `TARGET` is 0. A padding row may ask for them too. `MASKED` says that the row's mask holds.

    The rows of one lane's verify window follow each other: `COLUMN` counts them from 0, and `DRAFT` is the token that
    a row of column 1 or more was computed from, drafted as what the row before it draws.
    """

    reals: Any
    words: Any


@dataclass(frozen=True, slots=True)
class PreparedSampling:
    """`SamplingParams` and seed as the bytes of their row: `reals` f64[6], `words` i64[14] (bytes join fastest)."""

    reals: bytes
    words: bytes


def exact_fraction(top_p: float) -> tuple[int, int]:
    """(m, shift) with `top_p == m / 2**shift`, m below 2**53; shift is cut at 127, beyond which only m > 0 matters."""
    if top_p <= 0.0:
        return 0, 53
    fraction, exponent = math.frexp(min(top_p, 1.0))
    return int(fraction * (1 << 53)), min(53 - exponent, 127)


def prepare(params: SamplingParams, seed: int) -> PreparedSampling:
    """Turn checked settings into row constants. `seed` may be any integer; its low 64 bits count."""
    mantissa, shift = exact_fraction(params.top_p)
    penalised = params.penalty_last_n != 0 and (
        params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )
    reals = np.zeros(REALS, np.float64)
    reals[TEMPERATURE] = params.temperature
    reals[TOP_P] = params.top_p
    reals[LOG_MIN_P] = math.log(min(params.min_p, 1.0)) if params.min_p > 0.0 else -math.inf
    reals[REPEAT] = np.float32(params.repeat_penalty) if penalised else 1.0
    reals[PRESENCE] = np.float32(params.presence_penalty) if penalised else 0.0
    reals[FREQUENCY] = np.float32(params.frequency_penalty) if penalised else 0.0
    words = np.zeros(WORDS, np.int64)
    words[SEED] = np.uint64(seed & _MASK_64).astype(np.int64)
    words[TOP_P_MANTISSA] = mantissa
    words[TOP_P_SHIFT] = shift
    words[TOP_K] = min(max(params.top_k, 0), _MAX_INT32)
    # A window longer than any reply is the same as none.
    words[WINDOW] = min(max(params.penalty_last_n, -1), _MAX_INT32)
    words[ADJUSTS] = penalised or bool(params.logit_bias)
    words[VALID] = 1
    return PreparedSampling(reals.tobytes(), words.tobytes())


def rows_from(
    prepared: Sequence[PreparedSampling],
    positions: Sequence[int],
    slots: Sequence[int],
    width: int,
    drafts: Sequence[Sequence[int]] = (),
    scored: Sequence[bool] = (),
) -> DrawRows:
    """Rows of one draw, padded to `width`: one for each lane, and one more for each of its drafts.

    `positions` are absolute indices, in prompt + reply, of each lane's first token to draw; `slots` index the lane
    state; `drafts` holds each lane's drafted tokens (empty: none for any lane); `scored` says which lanes want the
    log-probabilities of what they draw (empty: none does).
    """
    reals = np.zeros((width, REALS), np.float64)
    words = np.zeros((width, WORDS), np.int64)
    counts = [1 + len(tokens) for tokens in drafts] if drafts else [1] * len(prepared)
    count = sum(counts)
    if count:
        lanes = [row for row, copies in zip(prepared, counts, strict=True) for _ in range(copies)]
        reals[:count] = np.frombuffer(b"".join([row.reals for row in lanes]), np.float64).reshape(count, REALS)
        words[:count] = np.frombuffer(b"".join([row.words for row in lanes]), np.int64).reshape(count, WORDS)
        words[:count, POSITION] = np.repeat(positions, counts)
        words[:count, SLOT] = np.repeat(slots, counts)
        if scored:
            words[:count, SCORED] = np.repeat(scored, counts)
    if drafts:
        words[:count, COLUMN] = np.concatenate([np.arange(copies) for copies in counts])
        words[:count, POSITION] += words[:count, COLUMN]
        words[:count, DRAFT] = [token for tokens in drafts for token in (0, *tokens)]
    return DrawRows(reals, words)


def target_rows(targets: Sequence[int], width: int) -> DrawRows:
    """Rows that draw nothing and give the log-probabilities of these tokens, one a row, padded to `width`."""
    words = np.zeros((width, WORDS), np.int64)
    words[: len(targets), SCORED] = 1
    words[: len(targets), TARGET] = np.asarray(targets, np.int64) + 1
    return DrawRows(np.zeros((width, REALS), np.float64), words)


def bias_arrays(
    pairs: Sequence[tuple[int, float]], limit: int = BIAS_LIMIT
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Pairs of (token id, added logit) as the i32[limit] (padded with -1) and f32[limit] of `reset_slot`.

    The last pair of an id counts.

    Raises:
        ValueError: more than `limit` different ids.
    """
    merged = dict(pairs)
    if len(merged) > limit:
        raise ValueError(f"logit_bias may name at most {limit} tokens, not {len(merged)}")
    ids = np.full(limit, -1, np.int32)
    values = np.zeros(limit, np.float32)
    ids[: len(merged)] = list(merged)
    values[: len(merged)] = list(merged.values())
    return ids, values
