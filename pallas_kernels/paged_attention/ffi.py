"""Attention as an XLA custom call in C++ (AVX2 and FMA), x86-64 only; `pallas_kernels.build` compiles it.

Its float32 sums have their own order, so its bits are not those of the XLA form: which of the two runs is one of the
facts that an engine's bits depend on, like the processor and the version of XLA.
"""

import functools

import jax
import numpy as np

from pallas_kernels import native

TARGET = "jaxfold_paged_attention"


@functools.lru_cache(maxsize=1)
def available() -> str | None:
    """The instruction set that it uses here, once it is registered with JAX; None where it cannot run."""
    form = native.instruction_set("jaxfold_attention_form")
    if form is not None:
        native.register(TARGET)
    return form


def takes(head_dim: int, dtype: np.dtype) -> bool:
    """Whether heads of this size and cached values of this type can be attended to."""
    return head_dim % 8 == 0 and str(dtype) in ("float32", "bfloat16")


def attend(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    table: jax.Array,
    start: jax.Array,
    length: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> jax.Array:
    """Attention as in `reference.attend`; columns from `length` on are zeros."""
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(q.shape, np.float32))
    cap, seen = np.float32(soft_cap or 0.0), np.int64(window or 0)
    out: jax.Array = call(q, k_pages, v_pages, table, start, length, scale=np.float32(scale), cap=cap, window=seen)
    return out
