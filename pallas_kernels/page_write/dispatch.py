"""Which implementation runs. It fails closed: an unknown name or platform is an error, never a silent other path."""

import jax

from pallas_kernels import gpu
from pallas_kernels.page_write import xla

FORMS = ("xla", "mosaic", "mosaic-interpreted")


def implementation() -> str:
    """What `write_rows` uses here where it takes the pages: "mosaic (sm_90a)" or "xla"."""
    return gpu.implementation()


def write_rows(
    pages: jax.Array, rows: jax.Array, page: jax.Array, offset: jax.Array, *, form: str | None = None
) -> jax.Array:
    """Write new key or value rows into pages; arguments and result as in `xla.write_rows`.

    Args:
        form: one of `FORMS` (None: the best that is here and takes these pages).

    Raises:
        ValueError: no such implementation on this machine or for these pages, or shapes that do not fit.
    """
    kv_heads, _, _, dim = pages.shape
    if rows.shape != (*page.shape, kv_heads, dim) or page.shape != offset.shape or page.ndim != 1:
        raise ValueError(f"page_write takes [n, {kv_heads}, {dim}], [n] and [n], not {rows.shape}, {page.shape}")
    # TMA copies whole multiples of 16 bytes, at most 256 heads and values at once; four warps copy 128 bytes at least.
    size, width = pages.dtype.itemsize, min(dim, 256)
    fits = width * size % 16 == 0 and dim % width == 0 and kv_heads <= 256 and kv_heads * width * size % 128 == 0
    chosen = form or ("mosaic" if gpu.hopper() and fits else "xla")
    if chosen == "xla":
        return xla.write_rows(pages, rows, page, offset)
    if fits and (chosen == "mosaic-interpreted" or (chosen == "mosaic" and gpu.hopper())):
        from pallas_kernels.page_write import mosaic

        return mosaic.write_rows(pages, rows, page, offset, form=chosen)
    raise ValueError(f"page_write has no implementation {chosen!r} for {pages.dtype}{pages.shape} on this machine")
