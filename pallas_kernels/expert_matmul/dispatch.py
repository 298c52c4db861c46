"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

from pallas_kernels.expert_matmul import xla

FORMS = ("xla",)


def implementation() -> str:
    """What `expert_matmul` uses here: "xla", on every platform."""
    return "xla"


def expert_matmul(x: jax.Array, weights: jax.Array, expert: jax.Array, *, form: str | None = None) -> jax.Array:
    """float[rows, k] times the matrix of float[experts, n, k] that int32[rows] names: float32[rows, n].

    Args:
        form: one of `FORMS` (None: the best that is here).

    Raises:
        ValueError: no such implementation, or shapes and dtypes that do not multiply.
    """
    if x.ndim != 2 or weights.ndim != 3 or expert.shape != x.shape[:1] or x.shape[1] != weights.shape[2]:
        raise ValueError(
            f"expert_matmul takes [rows, k], [experts, n, k] and [rows], not {x.shape}, {weights.shape}, {expert.shape}"
        )
    if x.dtype != weights.dtype or str(expert.dtype) != "int32":
        raise ValueError(f"expert_matmul takes one dtype and int32, not {x.dtype}, {weights.dtype}, {expert.dtype}")
    if form not in (None, *FORMS):
        raise ValueError(f"expert_matmul has no implementation {form!r} on this machine")
    return xla.expert_matmul(x, weights, expert)
