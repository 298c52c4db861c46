"""Every implementation of paged attention against the plain reference, and what its dispatch refuses."""

from typing import Any

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

jitted = jax.jit(attend, static_argnames=("scale", "window", "form"))


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
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equals_the_reference(
    kv_heads: int,
    group: int,
    dim: int,
    columns: int,
    window: int | None,
    soft_cap: float | None,
    dtype: Any,
    form: str,
) -> None:
    lanes = 3
    keys, values, table = pools(kv_heads, dim, lanes)
    keys, values = keys.astype(dtype), values.astype(dtype)
    start = np.array([0, 250, 2 * BLOCK - columns], np.int32)
    length = np.full(lanes, columns, np.int32)
    random = np.random.default_rng(1)
    q = jnp.asarray(random.normal(size=(lanes, columns, kv_heads * group, dim)).astype(np.float32)).astype(dtype)
    scale = dim**-0.5
    found = attend(q, keys, values, table, start, length, scale=scale, window=window, soft_cap=soft_cap, form=form)
    wanted = reference.attend(q, keys, values, table, start, scale=scale, window=window, soft_cap=soft_cap)
    # The XLA form rounds softmax weights to the cache's dtype.
    close = 2e-2 if dtype == jnp.bfloat16 and form == "xla" else 2e-5
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=close, rtol=close)


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim"),
    [(3, 3, 64), (8, 4, 64), (8, 8, 64), (1, 4, 256), (2, 2, 128), (4, 1, 128), (2, 7, 64), (1, 2, 24)],
)
@pytest.mark.parametrize("window", [None, 70])
def test_a_query_has_the_same_bits_in_any_company(
    kv_heads: int, group: int, dim: int, window: int | None, form: str
) -> None:
    # The compiler breaks odd windows above 16 columns; programs have 1, a few, or a multiple of 32.
    lanes, columns = 4, 24
    keys, values, table = (array for array in pools(kv_heads, dim, lanes))
    keys, values = keys.astype(jnp.bfloat16), values.astype(jnp.bfloat16)
    start = np.array([0, 250, 63, 2 * BLOCK - columns], np.int32)
    random = np.random.default_rng(1)
    q = jnp.asarray(random.normal(size=(lanes, columns, kv_heads * group, dim)).astype(np.float32))
    q = q.astype(jnp.bfloat16)

    def run(lane: slice, first: int, count: int) -> np.ndarray:
        some = q[lane, first : first + count]
        length = np.full(some.shape[0], count, np.int32)
        args = (some, keys, values, table[lane], start[lane] + np.int32(first), length)
        found = jitted(*args, scale=0.1, window=window, form=form)
        return np.asarray(found).view(np.int32)

    whole = run(slice(None), 0, columns)
    for first, count in ((0, 1), (7, 1), (0, 7), (7, 2), (9, 12), (20, 1)):
        np.testing.assert_array_equal(run(slice(None), first, count), whole[:, first : first + count])
    for lane in range(lanes):
        np.testing.assert_array_equal(run(slice(lane, lane + 1), 5, 3), whole[lane : lane + 1, 5:8])


def test_padding_lanes_change_nothing(form: str) -> None:
    keys, values, table = pools(2, 64, 3)
    q = jnp.asarray(np.random.default_rng(1).normal(size=(3, 1, 4, 64)).astype(np.float32))
    start, length = np.array([300, 40, 0], np.int32), np.array([1, 1, 0], np.int32)
    table[2] = 0
    for window in (None, 64):
        found = attend(q, keys, values, table, start, length, scale=0.1, window=window, form=form)
        alone = attend(q[:2], keys, values, table[:2], start[:2], length[:2], scale=0.1, window=window, form=form)
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
        attend(q, keys, values, table, one, one, scale=1.0, form="cuda")
    with pytest.raises(ValueError, match="do not divide"):
        attend(jnp.zeros((1, 1, 3, 64), jnp.float32), keys, values, table, one, one, scale=1.0)
    with pytest.raises(ValueError, match="do not fill blocks"):
        attend(q, keys, values, table[:, :3], one, one, scale=1.0)
