"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

from typing import Any

import jax

from pallas_kernels import gpu
from pallas_kernels.paged_attention import ffi
from pallas_kernels.paged_attention import xla

FORMS = ("xla", "ffi", "mosaic", "mosaic-interpreted")
MOSAIC_DIMS = (64, 128, 256, 512)


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
    sinks: jax.Array | None = None,
    form: str | None = None,
) -> jax.Array:
    """Attention over pages; arguments and result as in `xla.attend`.

    Args:
        form: one of `FORMS` (None: the best that is here and takes these arrays).

    Raises:
        ValueError: no implementation of that name here, or shapes that it cannot take.
    """
    page, heads, kv_heads = k_pages.shape[2], q.shape[2], k_pages.shape[0]
    if xla.BLOCK % page or (table.shape[1] * page) % xla.BLOCK:
        raise ValueError(f"page size {page} and table width {table.shape[1]} do not fill blocks of {xla.BLOCK} keys")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into {kv_heads} key-value heads")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks are [{heads}], one a query head, not {sinks.shape}")
    fits = _forms(q, k_pages, sinks)
    chosen = form or fits[0]
    if chosen not in fits:
        raise ValueError(f"paged_attention has no implementation {chosen!r} for these arrays on this machine")
    if chosen == "ffi":
        return ffi.attend(q, k_pages, v_pages, table, start, length, scale=scale, window=window, soft_cap=soft_cap)
    options: dict[str, Any] = {"scale": scale, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    if chosen == "xla":
        return xla.attend(q, k_pages, v_pages, table, start, length, **options)
    from pallas_kernels.paged_attention import mosaic

    return mosaic.attend(q, k_pages, v_pages, table, start, length, **options, form=chosen)


def implementation() -> str:
    """What `attend` uses here where it takes the arrays: "ffi (avx2)", "mosaic (sm_90a)" or "xla"."""
    found = ffi.available() if jax.default_backend() == "cpu" else None
    return gpu.implementation(cpu=None if found is None else f"ffi ({found})")


def _forms(q: jax.Array, k_pages: jax.Array, sinks: jax.Array | None) -> list[str]:
    """The implementations that take these arrays on this machine, the best first."""
    page, dim, dtype = k_pages.shape[2], k_pages.shape[3], k_pages.dtype
    found = ["xla"]
    if implementation().startswith("ffi") and ffi.takes(dim, dtype) and sinks is None:
        found.insert(0, "ffi")
    # Pages of 8, 16 ... keys: what a block of 64 keys is made of, or lies in.
    if str(dtype) == str(q.dtype) == "bfloat16" and dim in MOSAIC_DIMS and page % 8 == 0:
        if gpu.hopper():
            found.insert(0, "mosaic")
        found.append("mosaic-interpreted")
    return found
