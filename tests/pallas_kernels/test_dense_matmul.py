"""Every form of the row-invariant product against the reference, alone and in company, and compiled for a GPU."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dense_matmul import dense_matmul
from pallas_kernels.dense_matmul import implementation
from pallas_kernels.dense_matmul import reference
from pallas_kernels.dense_matmul.dispatch import FORMS

jitted = jax.jit(dense_matmul, static_argnames="form")


@pytest.fixture(params=["xla", "xla-tiled", "mosaic-interpreted"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def case(rows: int, k: int, n: int, whole: bool = False) -> tuple[jax.Array, jax.Array]:
    """bf16 rows and weights; `whole` ones are integers, whose sums are exact in any order."""
    random = np.random.default_rng(rows + k + n)

    def draw(*shape: int) -> jax.Array:
        values = random.integers(-3, 4, shape) if whole else random.normal(size=shape)
        return jnp.asarray(values, jnp.float32).astype(jnp.bfloat16)

    return draw(rows, k), draw(n, k)


@pytest.mark.parametrize(("rows", "k", "n"), [(2, 64, 64), (7, 512, 64), (65, 128, 128), (130, 192, 192)])
def test_equals_the_reference(rows: int, k: int, n: int, form: str) -> None:
    x, weight = case(rows, k, n)
    found = np.asarray(jitted(x, weight, form=form))
    np.testing.assert_allclose(found, reference.dense_matmul(x, weight), rtol=1e-5, atol=2e-5 * k**0.5)
    # Every row and output is in its place: sums of small integers have no rounding.
    x, weight = case(rows, k, n, whole=True)
    np.testing.assert_array_equal(np.asarray(jitted(x, weight, form=form)), reference.dense_matmul(x, weight))


def test_a_row_has_the_same_bits_in_any_company(form: str) -> None:
    x, weight = case(130, 256, 128)
    whole = np.asarray(jitted(x, weight, form=form)).view(np.int32)
    # The first row keeps its place in its tile: a simulated product, unlike wgmma, depends on it.
    for first, count in ((0, 2), (0, 5), (0, 64), (0, 70), (64, 2), (64, 66)):
        found = np.asarray(jitted(x[first : first + count], weight, form=form)).view(np.int32)
        np.testing.assert_array_equal(found[0], whole[first])


def test_other_dtypes_and_odd_shapes_have_a_form() -> None:
    random = np.random.default_rng(0)
    x, weight = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((5, 33), (7, 33)))
    for form in ("xla", "xla-tiled", None):
        found = dense_matmul(x, weight, form=form)
        np.testing.assert_allclose(np.asarray(found), reference.dense_matmul(x, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "k", "n"), [(1, 4096, 6144), (64, 14336, 4096), (512, 4096, 28672), (3, 64, 192)])
def test_lowers_for_a_gpu(rows: int, k: int, n: int, h200: None) -> None:
    assert implementation() == "mosaic (sm_90a)"
    arguments = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, k), (n, k)))
    assert "mosaic_gpu" in jax.jit(dense_matmul).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def test_a_gpu_takes_every_array(h200: None) -> None:
    for shape, dtype in (((100, 64), jnp.bfloat16), ((128, 64), jnp.float32)):
        arguments: Any = (jax.ShapeDtypeStruct(s, dtype) for s in ((3, 64), shape))
        text = jax.jit(dense_matmul).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
        assert "mosaic_gpu" not in text
        assert "tensor<64x64x" in text, "the rows are not in tiles"


def test_dispatch_fails_closed() -> None:
    x, weight = case(2, 64, 64)
    assert implementation() == "xla"
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        dense_matmul(x, weight, form="cuda")
    with pytest.raises(ValueError, match="no implementation 'mosaic' "):
        dense_matmul(x, weight, form="mosaic")
    with pytest.raises(ValueError, match="no implementation 'mosaic-interpreted'"):
        dense_matmul(x.astype(jnp.float32), weight.astype(jnp.float32), form="mosaic-interpreted")
    with pytest.raises(ValueError, match="of one dtype"):
        dense_matmul(x, weight.astype(jnp.float32))
    assert {"xla", "xla-tiled", "mosaic", "mosaic-interpreted"} == set(FORMS)
