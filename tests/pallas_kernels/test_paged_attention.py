"""Every implementation of paged attention against the plain reference, and what its dispatch refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ordered import ordered_mean
from pallas_kernels.ordered import ordered_sum
from pallas_kernels.paged_attention import attend
from pallas_kernels.paged_attention import implementation
from pallas_kernels.paged_attention import reference
from pallas_kernels.paged_attention.xla import BLOCK

PAGE = 32

jitted = jax.jit(attend, static_argnames=("scale", "window", "soft_cap", "form"))


def pools(
    kv_heads: int, dim: int, lanes: int, seed: int = 0, page: int = PAGE
) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Random pages and tables that use them in a scattered order."""
    random = np.random.default_rng(seed)
    width = 2 * BLOCK // page
    pages = 1 + lanes * width
    shape = (kv_heads, pages, page, dim)
    table = (1 + random.permutation(pages - 1)).reshape(lanes, width).astype(np.int32)
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
    start = np.array([0, 250, 2 * BLOCK - columns], np.int32)
    compare(form, kv_heads, group, dim, columns, start, dtype, window=window, soft_cap=soft_cap)


def test_sinks_take_part_in_the_softmax() -> None:
    start = np.array([0, 300], np.int32)
    compare("xla", 2, 3, 64, 1, start, jnp.float32, window=70, sinks=True)
    compare("mosaic-interpreted", 1, 3, 64, 2, start[1:], jnp.bfloat16, window=70, sinks=True)


@pytest.mark.parametrize(
    ("group", "dim", "columns", "page", "window", "soft_cap"),
    [(4, 64, 1, 16, None, None), (2, 128, 40, 64, 70, None), (1, 256, 3, 128, None, 5.0), (2, 512, 1, 32, 300, None)],
)
def test_the_gpu_form_equals_the_reference(
    group: int, dim: int, columns: int, page: int, window: int | None, soft_cap: float | None
) -> None:
    start = np.array([340], np.int32)
    compare("mosaic-interpreted", 1, group, dim, columns, start, jnp.bfloat16, page, window=window, soft_cap=soft_cap)


def compare(
    form: str,
    kv_heads: int,
    group: int,
    dim: int,
    columns: int,
    start: np.ndarray,
    dtype: Any,
    page: int = PAGE,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
) -> None:
    """Attention of random windows at `start` is that of the reference."""
    lanes = len(start)
    keys, values, table = pools(kv_heads, dim, lanes, page=page)
    keys, values = keys.astype(dtype), values.astype(dtype)
    random = np.random.default_rng(1)
    q = jnp.asarray(random.normal(size=(lanes, columns, kv_heads * group, dim)).astype(np.float32)).astype(dtype)
    options: dict[str, Any] = {"scale": dim**-0.5, "window": window, "soft_cap": soft_cap}
    if sinks:
        options["sinks"] = jnp.asarray(random.normal(size=kv_heads * group) * 3, jnp.float32)
    found = jitted(q, keys, values, table, start, np.full(lanes, columns, np.int32), form=form, **options)
    wanted = reference.attend(q, keys, values, table, start, **options)
    # All forms but the compiled one for CPUs round softmax weights to the cache's dtype.
    close = 2e-2 if dtype == jnp.bfloat16 and form != "ffi" else 2e-5
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=close, rtol=close)


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "window"),
    [
        (3, 3, 64, None),
        (3, 3, 64, 70),
        (8, 4, 64, None),
        (8, 8, 64, 70),
        (1, 4, 256, None),
        (2, 2, 128, 70),
        (4, 1, 128, None),
        (2, 7, 64, None),
        (1, 2, 24, 70),
    ],
)
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


def test_a_query_on_a_gpu_has_the_same_bits_in_any_company() -> None:
    keys, values, table = pools(1, 64, 3)
    keys, values = keys.astype(jnp.bfloat16), values.astype(jnp.bfloat16)
    start = np.array([130, 0, 290], np.int32)
    q = jnp.asarray(np.random.default_rng(1).normal(size=(3, 6, 2, 64)), jnp.float32).astype(jnp.bfloat16)

    def run(lanes: slice, first: int, count: int, width: int) -> np.ndarray:
        some = q[lanes, first : first + count]
        length = np.full(some.shape[0], count, np.int32)
        args = (some, keys, values, table[lanes, :width], start[lanes] + np.int32(first), length)
        return np.asarray(jitted(*args, scale=0.1, window=100, form="mosaic-interpreted")).view(np.int32)

    whole = run(slice(None), 0, 6, table.shape[1])
    # A window's first query keeps its place in its tile: a simulated product, unlike wgmma, depends on it.
    np.testing.assert_array_equal(run(slice(0, 1), 0, 1, BLOCK // PAGE)[0, 0], whole[0, 0])
    np.testing.assert_array_equal(run(slice(0, 2), 0, 2, table.shape[1])[:, :2], whole[:2, :2])
    np.testing.assert_array_equal(run(slice(2, 3), 0, 6, table.shape[1])[0], whole[2])


@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "columns", "page"),
    [(8, 4, 128, 1, 64), (8, 8, 64, 8, 16), (4, 2, 256, 256, 128), (1, 8, 512, 1, 64)],
)
@pytest.mark.parametrize(("window", "soft_cap", "sinks"), [(None, None, False), (512, 50.0, True)])
def test_lowers_for_a_gpu(
    kv_heads: int, group: int, dim: int, columns: int, page: int, window: int | None, soft_cap: float | None,
    sinks: bool, h200: None,
) -> None:  # fmt: skip
    assert implementation() == "mosaic (sm_90a)"
    q, pages = (8, columns, kv_heads * group, dim), (kv_heads, 1000, page, dim)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (q, pages, pages)]
    arguments += [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((8, 2048 // page), (8,), (8,))]
    options: dict[str, Any] = {"scale": 0.1, "window": window, "soft_cap": soft_cap}
    if sinks:
        options["sinks"] = jax.ShapeDtypeStruct((kv_heads * group,), jnp.float32)
    assert "mosaic_gpu" in jitted.trace(*arguments, **options).lower(lowering_platforms=("cuda",)).as_text()


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
    for form in ("mosaic", "mosaic-interpreted"):
        with pytest.raises(ValueError, match=f"no implementation '{form}'"):
            attend(q, keys, values, table, one, one, scale=1.0, form=form)
    with pytest.raises(ValueError, match="one a query head"):
        attend(q, keys, values, table, one, one, scale=1.0, sinks=jnp.zeros(3))
    with pytest.raises(ValueError, match="do not fill blocks"):
        attend(q, keys, values, table[:, :3], one, one, scale=1.0)
