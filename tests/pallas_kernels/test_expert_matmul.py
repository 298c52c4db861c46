"""The experts' product against the reference, and a row alone against the same row in any batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pallas_kernels.expert_matmul import expert_matmul
from pallas_kernels.expert_matmul import reference

jitted = jax.jit(expert_matmul, static_argnames="form")


def case(rows: int, experts: int, k: int, n: int, dtype: Any, spread: int) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Rows that go to at most `spread` of the experts."""
    random = np.random.default_rng(rows + experts + spread)
    x, weights = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((rows, k), (experts, n, k)))
    return x.astype(dtype), weights.astype(dtype), random.permutation(experts)[random.integers(0, spread, rows)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "spread"), [(1, 1), (2, 2), (40, 8), (40, 1), (33, 3)])
def test_equals_the_reference(rows: int, spread: int, dtype: Any) -> None:
    x, weights, expert = case(rows, 8, 96, 40, dtype, spread)
    found = jitted(x, weights, expert.astype(np.int32), form="xla")
    np.testing.assert_allclose(np.asarray(found), reference.expert_matmul(x, weights, expert), atol=2e-4, rtol=2e-5)


@settings(max_examples=25)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_batch(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    x, weights, expert = case(48, 5, 64, 24, dtype, data.draw(st.integers(1, 5)))
    expert = expert.astype(np.int32)
    whole = np.asarray(jitted(x, weights, expert)).view(np.int32)
    count = data.draw(st.sampled_from([1, 2, 17, 48]))
    some = np.array(data.draw(st.permutations(range(48)))[:count])
    found = np.asarray(jitted(x[some], weights, expert[some])).view(np.int32)
    np.testing.assert_array_equal(found, whole[some])


def test_dispatch_fails_closed() -> None:
    x, weights, expert = jnp.zeros((2, 8)), jnp.zeros((3, 4, 8)), jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match="no implementation 'mosaic'"):
        expert_matmul(x, weights, expert, form="mosaic")
    with pytest.raises(ValueError, match=r"takes \[rows, k\]"):
        expert_matmul(x, weights, expert[:1])
    with pytest.raises(ValueError, match="one dtype and int32"):
        expert_matmul(x, weights.astype(jnp.bfloat16), expert)
