"""The product as an XLA custom call in C++ (AVX2, AVX-512 VNNI), x86-64 only; `pallas_kernels.build` compiles it."""

import ctypes
import functools
import logging

import jax
import numpy as np

from pallas_kernels import native
from pallas_kernels.quantised_matmul import reference
from pallas_kernels.quantised_matmul.reference import SMALLEST
from pallas_kernels.quantised_matmul.reference import row_limit

LOG = logging.getLogger(__name__)
TARGET = "jaxfold_int8_product"


def int8_matmul(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
    """float32[rows, k] times int8[n, k] with float32[n] scales: float32[rows, n]."""
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((x.shape[0], values.shape[0]), np.float32))
    limit, smallest = np.int32(row_limit(x.shape[1])), np.float32(SMALLEST)
    product: jax.Array = call(x, values, scales, limit=limit, smallest=smallest)
    return product


@functools.lru_cache(maxsize=1)
def available() -> str | None:
    """The instruction set that it uses here, once it is registered with JAX; None where it cannot run.

    A library that does not give the reference's bits on this machine is not used.
    """
    form, library = native.instruction_set("jaxfold_int8_form"), native.library()
    if form is None or library is None:
        return None
    if not _is_right(library):
        LOG.warning("the compiled int8 product is wrong on this machine; plain XLA gives the right tokens")
        return None
    native.register(TARGET)
    return form


def _is_right(library: ctypes.CDLL) -> bool:
    random = np.random.default_rng(0)
    for rows, k, n in ((1, 48, 5), (2, 33, 9), (3, 64, 4), (13, 257, 67), (5, 20000, 3)):
        x = random.standard_normal((rows, k), dtype=np.float32)
        x[0, :7] = 0.0
        values = random.integers(-127, 128, (n, k)).astype(np.int8)
        scales = random.random(n, dtype=np.float32)
        y = np.empty((rows, n), np.float32)
        arrays = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, values, scales, y)]
        sizes = [ctypes.c_int64(size) for size in (rows, k, n)]
        library.jaxfold_int8_rows(*arrays, *sizes, ctypes.c_int32(row_limit(k)), ctypes.c_float(SMALLEST))
        if not np.array_equal(y.view(np.int32), reference.int8_matmul(x, values, scales).view(np.int32)):
            return False
    return True
