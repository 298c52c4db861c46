"""The operation as an XLA custom call in C++ (AVX2 and FMA), x86-64 only; `pallas_kernels.build` compiles it.

Its sums have their own order, so its bits are not those of the XLA form.
"""

import functools

import jax
import numpy as np

from pallas_kernels import native

TARGET = "jaxfold_packed_attention"


@functools.lru_cache(maxsize=1)
def available() -> str | None:
    """The instruction set that it uses here, once it is registered with JAX; None where it cannot run."""
    form = native.instruction_set("jaxfold_attention_form")
    if form is not None:
        native.register(TARGET)
    return form


def takes(head_dim: int) -> bool:
    """Whether heads of this size can be attended to."""
    return head_dim % 8 == 0


def attend(qkv: jax.Array, begin: jax.Array, end: jax.Array, *, heads: int, scale: float) -> jax.Array:
    """Attention as in `reference.attend`: float32[rows, 3 * heads * dim] -> float32[rows, heads * dim]."""
    shape = (qkv.shape[0], qkv.shape[1] // 3)
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, np.float32))
    out: jax.Array = call(qkv, begin, end, heads=np.int64(heads), scale=np.float32(scale))
    return out
