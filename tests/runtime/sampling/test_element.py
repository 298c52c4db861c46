"""Formulas of one element: exact integers against Python's, floats against numpy, bits alike in every shape."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.sampling import candidates
from jaxfold.runtime.sampling import element
from jaxfold.runtime.sampling import narrow
from jaxfold.runtime.sampling import reference
from jaxfold.runtime.sampling import wide
from jaxfold.runtime.sampling.rows import exact_fraction
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.shards import shard_of

needed = jax.jit(element.need)


@given(st.integers(0, (1 << 62) - 1), st.floats(0.0, 1.0, exclude_max=True))
@example(0, 0.5)
@example((1 << 62) - 1, math.nextafter(1.0, 0.0))
@example((1 << 60) + 1, 0.5)
@example(1 << 58, 5e-324)
@example((1 << 62) - 1, 2.0**-11)
@example((1 << 62) - 1, 2.0**-12 * 1.5)
@settings(max_examples=300, deadline=None)
def test_need_is_the_exact_ceiling(total, top_p):
    mantissa, shift = exact_fraction(top_p)
    with jax.enable_x64(True):
        got = int(needed(jnp.int64(total), jnp.uint64(mantissa), jnp.uint64(shift)))
    assert got == math.ceil(Fraction(top_p) * total)


def test_splitmix64_gives_its_published_values():
    """The first three outputs of splitmix64 from state 0."""
    states = [(0x9E3779B97F4A7C15 * step) & reference.MASK for step in (1, 2, 3)]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [reference.mix(state) for state in states] == expected
    with jax.enable_x64(True):
        assert [int(x) for x in element.mix(jnp.asarray(states, jnp.uint64))] == expected


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("position", [0, 1, (1 << 31) - 1, 1 << 31, 1 << 40])
def test_noise_is_that_of_the_reference(seed, position):
    ids = np.array([0, 1, 49151, 262143], np.int32)
    rows = rows_from([prepare(SamplingParams(), seed)], [position], [0], 1)
    with jax.enable_x64(True):
        got = np.asarray(element.gumbel(element.settings_of(rows).key[:, None], jnp.asarray(ids)[None]))[0]
    expected = [reference.gumbel(reference.uniform(seed, position, int(token))) for token in ids]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_bits_do_not_depend_on_the_shape():
    """What lets a gathered candidate and a whole row be compared: one element, one result."""
    rng = np.random.default_rng(0)
    scaled = -np.abs(rng.normal(size=6000) * 12)
    ids = np.arange(6000, dtype=np.int32)

    def both(scaled, ids):
        noise = element.gumbel(jnp.full(ids.shape, 12345, jnp.uint64), ids)
        return element.mass(scaled, jnp.float64(0)), element.score(scaled, noise)

    with jax.enable_x64(True):
        program = jax.jit(both)
        whole = [np.asarray(x) for x in program(jnp.asarray(scaled), jnp.asarray(ids))]
        for shape in [(1,), (2,), (3,), (5,), (7,), (1, 64), (16, 64), (4, 33), (5, 1, 9), (1025,), (4, 1024)]:
            size = math.prod(shape)
            some = program(jnp.asarray(scaled[:size].reshape(shape)), jnp.asarray(ids[:size].reshape(shape)))
            for got, expected in zip(some, whole, strict=True):
                np.testing.assert_array_equal(np.asarray(got).reshape(-1), expected[:size])


@pytest.mark.parametrize("temperature", [1e-6, 0.1, 0.3, 0.7, 0.8, 1.0, 1.3, 99.9])
def test_scaling_is_a_division_in_every_shape(temperature):
    """Not a product with the reciprocal, and the top alone is scaled as it is among others."""
    logits = np.random.default_rng(1).normal(size=(4, 3000)).astype(np.float32) * 9
    expected = logits.astype(np.float64) / temperature
    scale = jax.jit(lambda x, t: element.scale(x, t))
    many = jax.jit(lambda x, t: element.scale(x, t[:, None]))
    with jax.enable_x64(True):
        each = jnp.full(4, temperature)
        np.testing.assert_array_equal(np.asarray(many(logits, each)), expected)
        np.testing.assert_array_equal(np.asarray(scale(logits[0], each[0])), expected[0])
        np.testing.assert_array_equal(np.asarray(scale(logits[:, 0], each)), expected[:, 0])
        np.testing.assert_array_equal(np.asarray(scale(logits[0, 0], each[0])), expected[0, 0])


def test_canonical_values_sort_as_their_integers():
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1.0]
    logits = np.concatenate([np.array(odd, np.float32), np.random.default_rng(0).normal(size=500).astype(np.float32)])
    got = np.asarray(jax.jit(element.canonical)(jnp.asarray(logits)))
    np.testing.assert_array_equal(got.view(np.int32), reference.canonical(logits).view(np.int32))
    order = np.asarray(jax.jit(element.order_bits)(jnp.asarray(got)))
    np.testing.assert_array_equal(np.unique(got, return_inverse=True)[1], np.unique(order, return_inverse=True)[1])


@partial(jax.jit, static_argnames="count")
def lead(logits, count):
    return candidates.leading(logits, candidates.block_max(logits), count)


@pytest.mark.parametrize("width", [32, 2016])
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_leading_candidates_are_in_candidate_order(width, levels):
    rng = np.random.default_rng(width + levels)
    logits = rng.integers(0, levels, size=(3, width)).astype(np.float32)
    logits[0, :: max(width // 40, 1)] = -np.inf
    for count in (1, 64, 1024):
        values, places = lead(logits, count)
        for row in range(3):
            expected = np.lexsort((np.arange(width), -logits[row]))[: min(count, width)]
            np.testing.assert_array_equal(np.asarray(places)[row], expected)
            np.testing.assert_array_equal(np.asarray(values)[row], logits[row, expected])


@jax.jit
def estimates(logits, rows):
    """Exact sums of masses with their bounds [R], and exact scores (in the units of the bounds) with theirs [R, W]."""
    shard, mine = shard_of(logits.shape[1], None, None), element.settings_of(rows)
    top = logits.max(axis=1)
    scaled, scaled_top = (
        element.scale(x, t) for x, t in ((logits, mine.temperature[:, None]), (top, mine.temperature))
    )
    exact = element.mass(scaled, scaled_top[:, None]).sum(axis=1)
    low, high = narrow.mass_bounds(narrow.share_sum(narrow.shares(logits, top, mine)), shard.vocab)
    score = element.score(scaled, element.gumbel(mine.key[:, None], shard.ids(logits.shape[1])[None, :]))
    relative = (score - scaled_top[:, None]) * wide.LOG2_E
    return narrow.is_plain(top, mine), (low, exact, high), (relative, wide.bounds(logits, top, mine, shard))


@pytest.mark.parametrize("temperature", [1e-6, 0.01, 1.0, 100.0, 2.0**20])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1e5])
def test_estimates_stay_within_their_bounds(temperature, scale):
    """The bounds that pruning rests on, against exact masses and scores."""
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(4, 8192)) * scale).astype(np.float32)
    rows = rows_from([prepare(SamplingParams(temperature=temperature), s) for s in range(4)], [9] * 4, [0] * 4, 4)
    with jax.enable_x64(True):
        plain, masses, scores = jax.tree.map(np.asarray, estimates(logits, rows))
    assert plain.all()
    low, exact, high = masses
    assert (low <= exact).all() and (exact <= high).all()
    assert (high - low < exact * 1e-4 + 1e5).all()
    relative, bound = scores
    likely = relative > -1900
    assert (relative[likely] <= bound[likely] + wide.MARGIN).all()
    assert (bound[~likely] < -1000).all()
