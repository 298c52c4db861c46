"""Which implementation runs: the compiled one on a CPU that has it, else plain XLA. Both give the same bits."""

import jax

from pallas_kernels.quantised_matmul import ffi
from pallas_kernels.quantised_matmul import xla


def implementation() -> str:
    """What `int8_matmul` uses here: "ffi (avx2)", "ffi (avx512-vnni)" or "xla"."""
    form = ffi.available() if jax.default_backend() == "cpu" else None
    return "xla" if form is None else f"ffi ({form})"


def int8_matmul(x: jax.Array, values: jax.Array, scales: jax.Array, *, form: str | None = None) -> jax.Array:
    """float32[rows, k] times int8[n, k] with one float32 scale an output channel: float32[rows, n].

    Args:
        form: "ffi" or "xla" (None: the best that is here).

    Raises:
        ValueError: no such implementation on this machine, or shapes and dtypes that no implementation takes.
    """
    if x.ndim != 2 or values.ndim != 2 or x.shape[1] != values.shape[1] or scales.shape != values.shape[:1]:
        raise ValueError(f"int8_matmul takes [rows, k], [n, k] and [n], not {x.shape}, {values.shape}, {scales.shape}")
    if [str(array.dtype) for array in (x, values, scales)] != ["float32", "int8", "float32"]:
        raise ValueError(f"int8_matmul takes float32, int8 and float32, not {x.dtype}, {values.dtype}, {scales.dtype}")
    chosen = form or implementation().split()[0]
    if chosen == "xla":
        return xla.int8_matmul(x, values, scales)
    if chosen == "ffi" and implementation() != "xla":
        return ffi.int8_matmul(x, values, scales)
    raise ValueError(f"quantised_matmul has no implementation {chosen!r} on this machine")
