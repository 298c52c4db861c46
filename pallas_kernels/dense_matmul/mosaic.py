"""The Mosaic GPU form for Hopper (sm_90a): TMA brings tiles of rows and weights, wgmma multiplies them.

Every sum runs over k in steps of 16 from the first to the last, in one accumulator, with one instruction (m64n64k16)
whatever the tile, and k is never split: so a row's bits depend on neither the number of rows nor its place in a tile.
A few rows use a tile of 64 x 64, where the weights are read once and their bandwidth is the limit; more rows use
128 x 128, four such instructions a step.
"""

import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic import SWIZZLED_BF16
from pallas_kernels.mosaic import SWIZZLED_F32
from pallas_kernels.mosaic import interpret

INSTRUCTION = 64
STEP = 64
STAGE_BYTES = 128 * 1024


def dense_matmul(x: jax.Array, weight: jax.Array, *, form: str = "mosaic") -> jax.Array:
    """bf16[rows, k] times bf16[n, k]: float32[rows, n].

    Args:
        form: "mosaic", or "mosaic-interpreted" to run the kernel's steps on a CPU.
    """
    rows, n = x.shape[0], weight.shape[0]
    tall = 64 if rows <= 64 else 128
    parts = 2 if tall == 128 and n % (2 * INSTRUCTION) == 0 else 1
    height = -(-rows // tall) * tall
    body = functools.partial(_kernel, tall=tall, parts=parts)
    run = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((height, n), jnp.float32),
        # Row tiles of one weight tile run after each other, so that the weights come from the second-level cache.
        grid=(n // (parts * INSTRUCTION), height // tall),
        grid_names=("outputs", "rows"),
        kernel_name="dense_matmul",
        interpret=interpret(form),
    )
    found: jax.Array = run(jnp.pad(x, ((0, height - rows), (0, 0))), weight)
    return found[:rows]


def _kernel(x: Any, weight: Any, out: Any, *, tall: int, parts: int) -> None:
    """One tile of `tall` rows and `parts * INSTRUCTION` outputs."""
    wide = parts * INSTRUCTION
    rows = pl.ds(lax.axis_index("rows") * tall, tall)
    first = lax.axis_index("outputs") * wide
    steps = x.shape[1] // STEP
    stages = min(STAGE_BYTES // ((tall + wide) * STEP * 2), steps)

    def multiply(*sums: Any) -> tuple[jax.Array, ...]:
        def step(_: Any, x_tile: Any, weight_tile: Any) -> None:
            for part, total in enumerate(sums):
                plgpu.wgmma(total, x_tile, weight_tile.at[pl.ds(part * INSTRUCTION, INSTRUCTION)].T)
            # The products of the step before are done: its tiles may be overwritten.
            plgpu.wgmma_wait(parts if stages > 1 else 0)

        delay = 1 if stages > 1 else 0
        plgpu.emit_pipeline(
            step,
            grid=(steps,),
            in_specs=[
                plgpu.BlockSpec((height, STEP), lambda k: (0, k), transforms=SWIZZLED_BF16, delay_release=delay)
                for height in (tall, wide)
            ],
            max_concurrent_steps=stages,
        )(x.at[rows], weight.at[pl.ds(first, wide)])
        return tuple(total[...] for total in sums)

    def store(buffer: Any) -> None:
        for part, total in enumerate(totals):
            buffer[...] = total
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, out.at[rows, pl.ds(first + part * INSTRUCTION, INSTRUCTION)])
            plgpu.wait_smem_to_gmem(0)

    totals = pl.run_scoped(multiply, *(plgpu.WGMMAAccumulatorRef((tall, INSTRUCTION), jnp.float32),) * parts)
    pl.run_scoped(store, plgpu.SMEM((tall, INSTRUCTION), jnp.float32, transforms=SWIZZLED_F32))
