"""Every form of the page write against the reference, and compiled for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.page_write import implementation
from pallas_kernels.page_write import reference
from pallas_kernels.page_write import write_rows

jitted = jax.jit(write_rows, static_argnames="form", donate_argnames="pages")


@pytest.fixture(params=["xla", "mosaic-interpreted"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("kv_heads", "dim", "dtype"), [(2, 64, jnp.bfloat16), (3, 512, jnp.float32)])
def test_rows_are_written_where_they_belong(kv_heads: int, dim: int, dtype: jnp.dtype, form: str) -> None:
    random = np.random.default_rng(2)
    pages = jnp.asarray(random.normal(size=(kv_heads, 9, 32, dim)), jnp.float32).astype(dtype)
    rows = jnp.asarray(random.normal(size=(4, kv_heads, dim)), jnp.float32)
    page, offset = np.array([3, 0, 7, 0], np.int32), np.array([5, 1, 31, 1], np.int32)
    wanted = reference.write_rows(pages, rows, page, offset)
    found = np.asarray(jitted(pages, rows, page, offset, form=form))
    # Page 0 is scratch: which of the rows that collide there stays is nobody's concern.
    np.testing.assert_array_equal(found[:, 1:], wanted[:, 1:])


def test_lowers_for_a_gpu_in_place(h200: None) -> None:
    assert implementation() == "mosaic (sm_90a)"
    pages, rows = (
        jax.ShapeDtypeStruct((8, 1000, 64, 128), jnp.bfloat16),
        jax.ShapeDtypeStruct((32, 8, 128), jnp.float32),
    )
    where = jax.ShapeDtypeStruct((32,), jnp.int32)
    text = jitted.trace(pages, rows, where, where).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert "tf.aliasing_output = 0" in text
    odd = jax.ShapeDtypeStruct((8, 100, 64, 12), jnp.bfloat16), jax.ShapeDtypeStruct((32, 8, 12), jnp.float32)
    assert "mosaic_gpu" not in jitted.trace(*odd, where, where).lower(lowering_platforms=("cuda",)).as_text()


def test_dispatch_fails_closed() -> None:
    pages, rows, where = jnp.zeros((2, 3, 8, 12)), jnp.zeros((4, 2, 12)), jnp.zeros(4, jnp.int32)
    for form in ("cuda", "mosaic", "mosaic-interpreted"):
        with pytest.raises(ValueError, match=f"no implementation '{form}'"):
            write_rows(pages, rows, where, where, form=form)
    with pytest.raises(ValueError, match=r"takes \[n, 2, 12\]"):
        write_rows(pages, rows[:, :1], where, where)
