"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

from pallas_kernels.paged_attention import ffi
from pallas_kernels.paged_attention import xla


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
    form: str | None = None,
) -> jax.Array:
    """Attention over pages; arguments and result as in `xla.attend`.

    Args:
        form: "ffi" or "xla" (None: the best that is here and takes these arrays).

    Raises:
        ValueError: no implementation of that name here, or shapes that it cannot take.
    """
    page, heads, kv_heads = k_pages.shape[2], q.shape[2], k_pages.shape[0]
    if xla.BLOCK % page or (table.shape[1] * page) % xla.BLOCK:
        raise ValueError(f"page size {page} and table width {table.shape[1]} do not fill blocks of {xla.BLOCK} keys")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into {kv_heads} key-value heads")
    compiled = implementation() != "xla" and ffi.takes(q.shape[3], k_pages.dtype)
    chosen = form or ("ffi" if compiled else "xla")
    if chosen not in ("ffi", "xla") or (chosen == "ffi" and not compiled):
        raise ValueError(f"paged_attention has no implementation {chosen!r} for these arrays on this machine")
    run = ffi.attend if chosen == "ffi" else xla.attend
    return run(q, k_pages, v_pages, table, start, length, scale=scale, window=window, soft_cap=soft_cap)


def implementation() -> str:
    """What `attend` uses here where the head size allows it: "ffi (avx2)" or "xla"."""
    found = ffi.available() if jax.default_backend() == "cpu" else None
    return "xla" if found is None else f"ffi ({found})"


def write_rows(pages: jax.Array, rows: jax.Array, page: jax.Array, offset: jax.Array) -> jax.Array:
    """Write new key or value rows into pages; arguments and result as in `xla.write_rows`."""
    return xla.write_rows(pages, rows, page, offset)
