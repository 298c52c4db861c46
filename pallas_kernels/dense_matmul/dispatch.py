"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

from pallas_kernels import gpu
from pallas_kernels.dense_matmul import xla

# The Mosaic form multiplies bf16 in whole tiles.
TILE = 64
FORMS = ("xla", "xla-tiled", "mosaic", "mosaic-interpreted")


def implementation() -> str:
    """What `dense_matmul` uses here for bf16 in whole tiles of 64: "mosaic (sm_90a)", "xla-tiled" or "xla"."""
    found = gpu.implementation()
    return "xla-tiled" if found == "xla" and jax.default_backend() == "gpu" else found


def dense_matmul(x: jax.Array, weight: jax.Array, *, form: str | None = None) -> jax.Array:
    """float[rows, k] times float[n, k] of one dtype, summed in float32: float32[rows, n].

    Args:
        form: one of `FORMS` (None: the best that is here and takes these arrays).

    Raises:
        ValueError: no such implementation on this machine or for these arrays, or shapes that do not multiply.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise ValueError(
            f"dense_matmul takes [rows, k] and [n, k] of one dtype, not {x.dtype}{x.shape} and "
            f"{weight.dtype}{weight.shape}"
        )
    fits = str(weight.dtype) == "bfloat16" and weight.shape[0] % TILE == 0 and weight.shape[1] % TILE == 0
    chosen = form or _best(fits)
    if chosen == "xla":
        return xla.dense_matmul(x, weight)
    if chosen == "xla-tiled":
        return xla.tiled_matmul(x, weight)
    if fits and (chosen == "mosaic-interpreted" or (chosen == "mosaic" and gpu.hopper())):
        from pallas_kernels.dense_matmul import mosaic

        return mosaic.dense_matmul(x, weight, form=chosen)
    raise ValueError(f"dense_matmul has no implementation {chosen!r} for {weight.dtype}{weight.shape} on this machine")


def _best(fits: bool) -> str:
    if gpu.hopper():
        return "mosaic" if fits else "xla-tiled"
    return implementation()
