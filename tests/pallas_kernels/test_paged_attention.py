"""Every implementation of paged attention against the plain reference, and what its dispatch refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ordered import ordered_mean
from pallas_kernels.ordered import ordered_sum
from pallas_kernels.paged_attention import attend
from pallas_kernels.paged_attention import reference
from pallas_kernels.paged_attention import write_rows
from pallas_kernels.paged_attention.xla import BLOCK

PAGE = 32
WIDTH = 2 * BLOCK // PAGE


def pools(kv_heads: int, dim: int, lanes: int, seed: int = 0) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Random pages and tables that use them in a scattered order."""
    random = np.random.default_rng(seed)
    pages = 1 + lanes * WIDTH
    shape = (kv_heads, pages, PAGE, dim)
    table = (1 + random.permutation(pages - 1)).reshape(lanes, WIDTH).astype(np.int32)
    return (
        jnp.asarray(random.normal(size=shape).astype(np.float32)),
        jnp.asarray(random.normal(size=shape).astype(np.float32)),
        table,
    )


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "columns"), [(3, 3, 64, 1), (1, 4, 256, 5), (2, 7, 64, 16), (4, 1, 128, 2)]
)
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (70, None), (None, 5.0), (300, 30.0)])
def test_equals_the_reference(
    kv_heads: int, group: int, dim: int, columns: int, window: int | None, soft_cap: float | None
) -> None:
    lanes = 3
    keys, values, table = pools(kv_heads, dim, lanes)
    start = np.array([0, 250, 2 * BLOCK - columns], np.int32)
    length = np.full(lanes, columns, np.int32)
    random = np.random.default_rng(1)
    q = jnp.asarray(random.normal(size=(lanes, columns, kv_heads * group, dim)).astype(np.float32))
    scale = dim**-0.5
    found = attend(q, keys, values, table, start, length, scale=scale, window=window, soft_cap=soft_cap)
    wanted = reference.attend(q, keys, values, table, start, scale=scale, window=window, soft_cap=soft_cap)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=2e-5, rtol=2e-5)


def test_padding_lanes_change_nothing() -> None:
    keys, values, table = pools(2, 64, 3)
    q = jnp.asarray(np.random.default_rng(1).normal(size=(3, 1, 4, 64)).astype(np.float32))
    start, length = np.array([300, 40, 0], np.int32), np.array([1, 1, 0], np.int32)
    table[2] = 0
    for window in (None, 64):
        found = attend(q, keys, values, table, start, length, scale=0.1, window=window)
        alone = attend(q[:2], keys, values, table[:2], start[:2], length[:2], scale=0.1, window=window)
        np.testing.assert_array_equal(np.asarray(found[:2]), np.asarray(alone))
        assert np.isfinite(np.asarray(found)).all()


def test_rows_are_written_where_they_belong() -> None:
    keys, _, _ = pools(2, 64, 1)
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(4, 2, 64)).astype(np.float32))
    page, offset = np.array([3, 0, 7, 0], np.int32), np.array([5, 1, 31, 1], np.int32)
    written = np.asarray(write_rows(keys, rows, page, offset))
    wanted = np.asarray(keys).copy()
    wanted[:, 3, 5], wanted[:, 7, 31] = rows[0], rows[2]
    np.testing.assert_array_equal(written[:, 1:], wanted[:, 1:])


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 96, 127, 256, 576, 1000])
def test_ordered_sum_is_a_sum_whose_bits_ignore_the_rows(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(128, n)).astype(np.float32)
    whole = np.asarray(jax.jit(ordered_sum)(x))
    np.testing.assert_allclose(whole, x.astype(np.float64).sum(axis=1), atol=1e-4)
    for rows in (1, 2, 7, 16):
        np.testing.assert_array_equal(np.asarray(jax.jit(ordered_sum)(x[:rows])), whole[:rows])
    np.testing.assert_allclose(np.asarray(ordered_mean(x)), x.mean(axis=1), atol=1e-5)


def test_dispatch_fails_closed() -> None:
    keys, values, table = pools(2, 64, 1)
    q = jnp.zeros((1, 1, 4, 64), jnp.float32)
    one = np.ones(1, np.int32)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        attend(q, keys, values, table, one, one, scale=1.0, implementation="cuda")
    with pytest.raises(ValueError, match="do not divide"):
        attend(jnp.zeros((1, 1, 3, 64), jnp.float32), keys, values, table, one, one, scale=1.0)
    with pytest.raises(ValueError, match="do not fill blocks"):
        attend(q, keys, values, table[:, :3], one, one, scale=1.0)
