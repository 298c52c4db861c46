"""Packed attention: every form agrees with the reference, and a sequence's bits do not depend on its surroundings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import packed_attention
from pallas_kernels.packed_attention import reference
from pallas_kernels.packed_attention.xla import TILE

HEADS, DIM = 3, 16


def packed(lengths: list[int], rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, and the bounds of sequences of these lengths, each beginning at a whole tile."""
    qkv = np.random.default_rng(seed).standard_normal((rows, 3 * HEADS * DIM), dtype=np.float32) * 2
    begin, end, at = np.zeros(rows, np.int32), np.zeros(rows, np.int32), 0
    for length in lengths:
        begin[at : at + length], end[at : at + length] = at, at + length
        at += -(-length // TILE) * TILE
    assert at <= rows
    return qkv, begin, end


def attend(qkv: np.ndarray, begin: np.ndarray, end: np.ndarray, form: str) -> np.ndarray:
    run = jax.jit(packed_attention.attend, static_argnames=("heads", "scale", "form"))
    return np.asarray(run(qkv, begin, end, heads=HEADS, scale=DIM**-0.5, form=form))


@pytest.mark.parametrize("lengths", [[1], [16], [17, 1, 40], [64], [65, 3], [200, 7]])
def test_agrees_with_the_reference(lengths: list[int], form: str) -> None:
    qkv, begin, end = packed(lengths, 256)
    wanted = reference.attend(qkv, begin, end, heads=HEADS, scale=DIM**-0.5)
    np.testing.assert_allclose(attend(qkv, begin, end, form), wanted, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 16, 33, 70])
def test_the_surroundings_change_no_bit(length: int, form: str) -> None:
    alone, begin, end = packed([length], 96)
    first = attend(alone, begin, end, form)[:length]
    company, begin, end = packed([40, 3, length, 90], 512, seed=1)
    company[64 : 64 + length] = alone[:length]
    again = attend(company, begin, end, form)[64 : 64 + length]
    np.testing.assert_array_equal(first.view(np.int32), again.view(np.int32))


def test_padding_gives_zeros(form: str) -> None:
    qkv, begin, end = packed([5], 48)
    assert not attend(qkv, begin, end, form)[5:].any()


def test_sequences_may_begin_anywhere_in_the_compiled_form() -> None:
    if packed_attention.implementation() == "xla":
        pytest.skip("the compiled form is not here")
    qkv, begin, end = packed([40], 48)
    moved = np.concatenate([qkv[40:47], qkv[:41]])
    begin, end = np.where(np.arange(48) >= 7, 7, 0), np.where(np.arange(48) >= 7, 47, 7)
    begin[47], end[47] = 0, 0
    found = attend(moved, begin.astype(np.int32), end.astype(np.int32), "ffi")[7:47]
    whole, ends = packed([40], 48)[1:]
    wanted = attend(qkv, whole, ends, "ffi")[:40]
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


def test_what_no_form_takes_is_an_error() -> None:
    bounds = jnp.zeros(16, jnp.int32)
    with pytest.raises(ValueError, match="packed attention takes"):
        packed_attention.attend(jnp.zeros((16, 10)), bounds, bounds, heads=3, scale=1.0)
    with pytest.raises(ValueError, match="no implementation 'cuda'"):
        packed_attention.attend(jnp.zeros((16, 12)), bounds, bounds, heads=1, scale=1.0, form="cuda")
