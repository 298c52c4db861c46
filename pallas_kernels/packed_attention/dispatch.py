"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

from pallas_kernels.packed_attention import ffi
from pallas_kernels.packed_attention import xla


def attend(
    qkv: jax.Array,
    begin: jax.Array,
    end: jax.Array,
    *,
    heads: int,
    scale: float,
    compute: str = "float32",
    form: str | None = None,
) -> jax.Array:
    """Attention of packed rows; arguments and result as in `reference.attend`, in float32.

    Args:
        compute: what the XLA form's products take; the compiled one computes in float32.
        form: "ffi" or "xla" (None: the best that is here and takes these heads).

    Raises:
        ValueError: no implementation of that name here, or shapes that it cannot take.
    """
    if qkv.ndim != 2 or qkv.shape[1] % (3 * heads):
        raise ValueError(f"packed attention takes [rows, 3 * {heads} heads * dim], not {qkv.shape}")
    dim = qkv.shape[1] // (3 * heads)
    chosen = form or _form(dim)
    if chosen == "ffi" and _form(dim) == "ffi":
        return ffi.attend(qkv, begin, end, heads=heads, scale=scale)
    if chosen == "xla" and qkv.shape[0] % xla.TILE == 0:
        return xla.attend(qkv, begin, end, heads=heads, scale=scale, compute=compute)
    raise ValueError(f"packed_attention has no implementation {chosen!r} for {qkv.shape} on this machine")


def alignment(head_dim: int) -> int:
    """Sequences begin at multiples of this many rows."""
    return 1 if _form(head_dim) == "ffi" else xla.TILE


def implementation() -> str:
    """What `attend` uses here where the head size allows it: "ffi (avx2)" or "xla"."""
    found = ffi.available() if jax.default_backend() == "cpu" else None
    return "xla" if found is None else f"ffi ({found})"


def _form(head_dim: int) -> str:
    return "ffi" if implementation() != "xla" and ffi.takes(head_dim) else "xla"
