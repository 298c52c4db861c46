"""The Mosaic GPU form for Hopper (sm_90a): a block a row, whose heads TMA copies through shared memory."""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
from jax import lax

from pallas_kernels.mosaic import interpret

# A copy by TMA is at most 256 long in each axis.
LONGEST = 256


def write_rows(
    pages: jax.Array, rows: jax.Array, page: jax.Array, offset: jax.Array, *, form: str = "mosaic"
) -> jax.Array:
    """Write rows into pages; arguments and result as in `xla.write_rows`.

    Args:
        form: "mosaic", or "mosaic-interpreted" to run the kernel's steps on a CPU.
    """
    target = jax.new_ref(pages)
    run = plgpu.kernel(
        _kernel,
        grid=(rows.shape[0],),
        grid_names=("row",),
        kernel_name="page_write",
        # Rows that are padding collide in the scratch page, which nobody reads.
        interpret=interpret(form, detect_races=False),
    )
    run(rows.astype(pages.dtype), page, offset, target)
    return jax.freeze(target)


def _kernel(rows: Any, page: Any, offset: Any, pages: Any) -> None:
    """One row of every head."""
    kv_heads, dim = rows.shape[1:]
    row = lax.axis_index("row")
    width = min(dim, LONGEST)

    def copy(buffer: Any, barrier: Any) -> None:
        for first in range(0, dim, width):
            part = pl.ds(first, width)
            plgpu.copy_gmem_to_smem(rows.at[row, :, part], buffer, barrier)
            plgpu.barrier_wait(barrier)
            plgpu.copy_smem_to_gmem(buffer, pages.at[:, page[row], offset[row], part])
            plgpu.wait_smem_to_gmem(0)

    pl.run_scoped(copy, plgpu.SMEM((kv_heads, width), rows.dtype), plgpu.Barrier())
