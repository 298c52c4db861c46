"""The keyed draw in plain numpy, one row at a time over the whole vocabulary: slow, and easy to check by eye."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from jaxfold.runtime.api import SamplingParams

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """Finaliser of splitmix64 on an unsigned 64-bit integer."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int, token: int) -> float:
    """The uniform number of (seed, absolute position, token id)."""
    a = mix((seed + 0x9E3779B97F4A7C15) & MASK)
    b = mix(a ^ ((position * 0xD1B54A32D192ED03) & MASK))
    return float(mix(b ^ token) >> 11) * 2.0**-53 + 2.0**-54


def gumbel(u: float) -> float:
    """-ln(-ln u); infinite for the one u that rounds to 1."""
    return -math.log(-math.log(u)) if u < 1.0 else math.inf


def adjust(
    logits: NDArray[np.float32], params: SamplingParams, counts: NDArray[np.int32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Penalties, then bias, in float32. `counts` are the generated tokens inside the window. Shapes [V]."""
    out = logits.copy()
    repeat, presence, frequency = (
        np.float32(value) for value in (params.repeat_penalty, params.presence_penalty, params.frequency_penalty)
    )
    seen = counts > 0
    if params.penalty_last_n != 0:
        if repeat != 1:
            out[seen] = np.where(out[seen] > 0, out[seen] / repeat, out[seen] * repeat)
        if presence != 0:
            out[seen] -= presence
        if frequency != 0:
            out[seen] -= frequency * counts[seen].astype(np.float32)
    biased = bias != 0
    out[biased] += bias[biased]
    return out


def canonical(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """One bit pattern a value: NaN is -inf, +inf the largest float, zeros and subnormals +0."""
    info = np.finfo(np.float32)
    out = np.where(np.isnan(logits), np.float32(-np.inf), np.minimum(logits, info.max))
    return np.where(np.abs(out) < info.tiny, np.float32(0), out).astype(np.float32)


def draw_row(
    logits: NDArray[np.float32],
    params: SamplingParams,
    seed: int,
    position: int,
    counts: NDArray[np.int32] | None = None,
    bias: NDArray[np.float32] | None = None,
) -> int:
    """Token of one row. `logits` f32[V], `counts` i32[V] and `bias` f32[V] (None: zeros)."""
    vocab = logits.shape[0]
    counts = np.zeros(vocab, np.int32) if counts is None else counts
    bias = np.zeros(vocab, np.float32) if bias is None else bias
    row = canonical(adjust(logits, params, counts, bias))
    order = np.lexsort((np.arange(vocab), -row))
    if params.temperature <= 0.0 or row[order[0]] == -np.inf:
        return int(order[0])
    scaled = row.astype(np.float64) / max(params.temperature, 1e-6)
    top = float(scaled[order[0]])
    kept = order[: params.top_k] if 0 < params.top_k < vocab else order
    if params.top_p < 1.0:
        kept = kept[: nucleus(scaled[kept], top, params.top_p)]
    if params.min_p > 0.0:
        floor = top + math.log(min(params.min_p, 1.0))
        kept = np.array([token for i, token in enumerate(kept) if i == 0 or scaled[token] >= floor])
    best, best_score = int(kept[0]), -math.inf
    for token in kept:
        noise = gumbel(uniform(seed, position, int(token)))
        score = float(scaled[token]) + noise if scaled[token] > -np.inf else -math.inf
        if score > best_score:
            best, best_score = int(token), score
    return best


def nucleus(scaled: NDArray[np.float64], top: float, top_p: float) -> int:
    """How many of the leading candidates (`scaled`, in candidate order) top_p keeps: at least one."""
    masses = [int(mass) for mass in np.floor(np.exp(scaled - top) * 2.0**40)]
    need = math.ceil(Fraction(max(top_p, 0.0)) * sum(masses))
    reached = 0
    for count, mass in enumerate(masses, start=1):
        reached += mass
        if reached >= need:
            return count
    return len(masses)
