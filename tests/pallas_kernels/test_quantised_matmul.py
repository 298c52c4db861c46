"""The int8 product: every form gives the reference's bits on every shape, and those depend on the row alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pallas_kernels.quantised_matmul import int8_matmul
from pallas_kernels.quantised_matmul import quantise_weight
from pallas_kernels.quantised_matmul import reference


def bits(array: object) -> np.ndarray:
    return np.asarray(array).view(np.int32)


def case(rows: int, k: int, n: int, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, k), dtype=np.float32) * np.float32(10.0) ** random.uniform(-spread, spread)
    return x.astype(np.float32), *quantise_weight(random.standard_normal((n, k), dtype=np.float32))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 13, 33])
@pytest.mark.parametrize(("k", "n"), [(576, 130), (1536, 64), (33, 5), (8, 1), (4096, 70)])
def test_equals_the_reference(rows: int, k: int, n: int, form: str) -> None:
    x, values, scales = case(rows, k, n)
    found = jax.jit(int8_matmul, static_argnames="form")(x, values, scales, form=form)
    np.testing.assert_array_equal(bits(found), bits(reference.int8_matmul(x, values, scales)))


@pytest.mark.parametrize("k", [20_000, 60_000])
def test_long_sums_do_not_overflow(k: int, form: str) -> None:
    x, values = np.ones((2, k), np.float32), np.full((3, k), 127, np.int8)
    found = np.asarray(int8_matmul(jnp.asarray(x), jnp.asarray(values), jnp.ones(3, jnp.float32), form=form))
    np.testing.assert_allclose(found, 127.0 * k, rtol=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40), k=st.integers(1, 300), n=st.integers(1, 150), seed=st.integers(0, 99),
    spread=st.sampled_from([0.0, 3.0, 20.0, 37.0]),
)  # fmt: skip
def test_the_plain_forms_agree_with_the_reference_everywhere(
    rows: int, k: int, n: int, seed: int, spread: float
) -> None:
    x, values, scales = case(rows, k, n, seed, spread)
    x[0] = 0.0
    wanted = bits(reference.int8_matmul(x, values, scales))
    with jax.disable_jit(False):
        np.testing.assert_array_equal(bits(int8_matmul(x, values, scales)), wanted)


def test_a_row_has_the_same_bits_in_any_company(form: str) -> None:
    x, values, scales = case(48, 576, 96)
    whole = bits(int8_matmul(x, values, scales, form=form))
    for first, count in ((0, 1), (5, 2), (17, 16), (3, 45)):
        some = x[first : first + count]
        np.testing.assert_array_equal(bits(int8_matmul(some, values, scales, form=form)), whole[first : first + count])


def test_the_error_is_that_of_the_weights_alone() -> None:
    random = np.random.default_rng(3)
    weight, x = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 576), (8, 576)))
    values, scales = quantise_weight(weight)
    kept = values.astype(np.float64) * scales[:, None]
    assert np.abs(kept - weight).max() <= np.abs(weight).max() / 127 / 2 * 1.0001
    found = reference.int8_matmul(x, values, scales)
    np.testing.assert_allclose(found, x.astype(np.float64) @ kept.T, atol=2e-2, rtol=0)


@pytest.mark.parametrize("row", [[0.0, 0.0], [1e-38, -1e-38], [1e-31, 0.0], [3e36, -3e36], [1.0, 1e-30]])
def test_extreme_rows(row: list[float], form: str) -> None:
    x = np.array([row, [1.0, 2.0]], np.float32)
    values, scales = quantise_weight(np.array([[1.0, -0.5], [0.0, 0.0]], np.float32))
    found = int8_matmul(x, values, scales, form=form)
    np.testing.assert_array_equal(bits(found), bits(reference.int8_matmul(x, values, scales)))


def test_dispatch_fails_closed() -> None:
    x, values, scales = case(2, 16, 4)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        int8_matmul(x, values, scales, form="cuda")
    with pytest.raises(ValueError, match="takes float32, int8 and float32"):
        int8_matmul(x.astype(np.float64), values, scales)
    with pytest.raises(ValueError, match=r"takes \[rows, k\]"):
        int8_matmul(x, values[:, :8], scales)
