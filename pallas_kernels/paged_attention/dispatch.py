"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

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
    implementation: str = "xla",
) -> jax.Array:
    """Attention over pages; arguments and result as in `xla.attend`.

    Raises:
        ValueError: no implementation of that name, or shapes that it cannot take.
    """
    page, heads, kv_heads = k_pages.shape[2], q.shape[2], k_pages.shape[0]
    if implementation != "xla":
        raise ValueError(f"paged_attention has no implementation {implementation!r}")
    if xla.BLOCK % page or (table.shape[1] * page) % xla.BLOCK:
        raise ValueError(f"page size {page} and table width {table.shape[1]} do not fill blocks of {xla.BLOCK} keys")
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide into {kv_heads} key-value heads")
    return xla.attend(q, k_pages, v_pages, table, start, length, scale=scale, window=window, soft_cap=soft_cap)


def write_rows(pages: jax.Array, rows: jax.Array, page: jax.Array, offset: jax.Array) -> jax.Array:
    """Write new key or value rows into pages; arguments and result as in `xla.write_rows`."""
    return xla.write_rows(pages, rows, page, offset)
