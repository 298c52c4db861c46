"""Formulas of the keyed draw for one element or one row, traced under `jax.enable_x64(True)`.

Every path of the draw uses these and nothing else for float64 values, so that paths agree bit for bit.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax import lax

from jaxfold.runtime.sampling import rows as columns

MIN_TEMPERATURE = 1e-6
MASS_ONE = float(1 << 40)
NEVER = -np.inf

_FLOAT_MAX = np.finfo(np.float32).max
_FLOAT_TINY = np.finfo(np.float32).tiny


class Settings(NamedTuple):
    """What the draw of rows needs, packed so that a loop over rows takes few slices.

    `reals` f64[R, 6] and `words` i64[R, 11] as in `DrawRows`, `key` u64[R] the hash of seed and position.
    The properties are columns [R]; of one row (`row_of`) everything has one axis less.
    """

    reals: Array
    words: Array
    key: Array

    @property
    def greedy(self) -> Array:
        return self.reals[..., columns.TEMPERATURE] <= 0.0

    @property
    def temperature(self) -> Array:
        """f64, floored at MIN_TEMPERATURE."""
        return jnp.maximum(self.reals[..., columns.TEMPERATURE], MIN_TEMPERATURE)

    @property
    def with_top_p(self) -> Array:
        return self.reals[..., columns.TOP_P] < 1.0

    @property
    def log_min_p(self) -> Array:
        """f64, -inf is off."""
        return self.reals[..., columns.LOG_MIN_P]

    @property
    def top_k(self) -> Array:
        """i32, 0 is off."""
        return self.words[..., columns.TOP_K].astype(jnp.int32)

    @property
    def valid(self) -> Array:
        return self.words[..., columns.VALID] != 0

    def with_top_k(self, vocab: int) -> Array:
        return (self.top_k > 0) & (self.top_k < vocab)

    def need(self, total: Array) -> Array:
        """ceil(top_p * total) as i64, exactly. `total` i64 >= 0 of the shape of a column."""
        unsigned = self.words.astype(jnp.uint64)
        return need(total, unsigned[..., columns.TOP_P_MANTISSA], unsigned[..., columns.TOP_P_SHIFT])


def settings_of(rows: columns.DrawRows) -> Settings:
    """Rows of a draw as the draw reads them."""
    reals, words = jnp.asarray(rows.reals), jnp.asarray(rows.words)
    unsigned = lax.bitcast_convert_type(words, jnp.uint64)
    return Settings(reals, words, row_key(unsigned[:, columns.SEED], unsigned[:, columns.POSITION]))


def row_of(settings: Settings, row: Array) -> Settings:
    """Settings of one row (`row` i32 scalar), or of some of the rows (i32[G])."""
    return Settings(settings.reals[row], settings.words[row], settings.key[row])


def canonical(logits: Array) -> Array:
    """One bit pattern a value: NaN is -inf, +inf the largest float, zeros and subnormals +0. f32, any shape."""
    finite = jnp.where(jnp.isnan(logits), np.float32(NEVER), jnp.minimum(logits, _FLOAT_MAX))
    return jnp.where(jnp.abs(finite) < _FLOAT_TINY, np.float32(0), finite)


def order_bits(logits: Array) -> Array:
    """Integers i32 that sort as the canonical logits f32 do."""
    bits = lax.bitcast_convert_type(logits, jnp.int32)
    return jnp.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def scale(logits: Array, temperature: Array) -> Array:
    """float64(logit) / T, correctly rounded."""
    # A divisor that is a plain broadcast would be turned into a product with its reciprocal, which rounds twice.
    return logits.astype(jnp.float64) / jnp.where(logits > NEVER, temperature, 1.0)


def mass(scaled: Array, top: Array) -> Array:
    """floor(exp(scaled - top) * 2**40) as i64. `top` is finite."""
    return jnp.floor(jnp.exp(scaled - top) * MASS_ONE).astype(jnp.int64)


def barrier(x: Array) -> Array:
    """`x`, computed on its own: the compiler fuses nothing across it."""
    apart: Array = lax.optimization_barrier(x)
    return apart


def exact_sum(x: Array) -> Array:
    """Sums i64[...] of i64[..., W], each in 0..2**41 and at most 2**31 of them, in any order.

    As two f64 sums of halves, whose partial sums are integers below 2**53: XLA compiles these faster than i64 sums.
    """
    low, high = x & np.int64((1 << 20) - 1), x >> np.int64(20)
    low_sum, high_sum = (barrier(part.astype(jnp.float64)).sum(axis=-1) for part in (low, high))
    return (high_sum.astype(jnp.int64) << np.int64(20)) + low_sum.astype(jnp.int64)


def mix(x: Array) -> Array:
    """Finaliser of splitmix64, u64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_key(seed: Array, position: Array) -> Array:
    """Hash u64 of seed and absolute position, the part of the uniform that a row shares."""
    return mix(mix(seed + np.uint64(0x9E3779B97F4A7C15)) ^ (position * np.uint64(0xD1B54A32D192ED03)))


def gumbel(key: Array, ids: Array) -> Array:
    """-ln(-ln u) in f64, u being the uniform of (seed, position, id). `key` u64 and `ids` i32 of one shape."""
    bits = mix(key ^ ids.astype(jnp.uint64)) >> np.uint64(11)
    uniform = bits.astype(jnp.float64) * 2.0**-53 + 2.0**-54
    return -jnp.log(-jnp.log(uniform))


def score(scaled: Array, noise: Array) -> Array:
    """What the drawn token maximises; a logit of -inf is never drawn, whatever its noise."""
    return jnp.where(scaled == NEVER, NEVER, scaled + noise)


def need(total: Array, mantissa: Array, shift: Array) -> Array:
    """ceil(top_p * total) as i64, exactly.

    `total` i64 >= 0; `mantissa` u64 below 2**53 and `shift` u64 in 53..127 give top_p = mantissa / 2**shift.
    """
    low_32 = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a = total.astype(jnp.uint64)
    a_low, a_high, m_low, m_high = a & low_32, a >> half, mantissa & low_32, mantissa >> half
    low_low, low_high, high_low = a_low * m_low, a_low * m_high, a_high * m_low
    middle = (low_low >> half) + (low_high & low_32) + (high_low & low_32)
    low = (low_low & low_32) | (middle << half)
    high = a_high * m_high + (low_high >> half) + (high_low >> half) + (middle >> half)

    # A shift by 64 or more is undefined, so each branch is given a count that is in range.
    one, word = np.uint64(1), np.uint64(64)
    small = jnp.minimum(shift, np.uint64(63))
    short_quotient = (high << (word - small)) | (low >> small)
    short_rest = low & ((one << small) - one)
    large = jnp.maximum(shift, word) - word
    long_quotient = high >> large
    long_rest = (high & ((one << large) - one)) | low
    short = shift < word
    quotient = jnp.where(short, short_quotient, long_quotient)
    rest = jnp.where(short, short_rest, long_rest)
    return (quotient + (rest != np.uint64(0)).astype(jnp.uint64)).astype(jnp.int64)
