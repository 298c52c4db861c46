"""What the Mosaic GPU kernels share."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu

# Tiles in shared memory as wgmma and TMA want them: one 128-byte pattern holds 64 bf16 or 32 float32 values.
SWIZZLED_BF16 = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
SWIZZLED_F32 = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]


def interpret(form: str, detect_races: bool = True) -> Any:
    """The argument of `plgpu.kernel` that runs `form` "mosaic-interpreted" on a CPU; None for "mosaic" itself.

    With `detect_races` the interpreter follows what copies and barriers order, and raises where two accesses race.
    """
    return plgpu.InterpretGPUParams(detect_races=detect_races) if form == "mosaic-interpreted" else None
