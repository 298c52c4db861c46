"""What a round costs by the shape of its step: measured once through the real programs, then followed while serving."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.device import Device
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import Table

FOLLOW = 0.2
"""How fast the costs of all shapes follow a round: contexts grow, and the machine may be busy."""

LEARN = 0.02
"""How fast the cost of a shape moves against the others. Slow, since most of what changes changes for all of them."""

OUTLIER = 3.0
"""A round that took more than this many times as long as expected, or as short, counts as this many times."""

REPEATS = 5
BUDGET_S = 2.0
"""Seconds after which no shape is measured again."""

CONTEXT = 256
"""Tokens before the measured rows, where the table reaches so far."""


class RoundCosts:
    """Seconds of a round of each decode and verify shape.

    A shape that has not run for a while is taken to have become slower or faster as the ones that did.
    """

    def __init__(self, seconds: Mapping[StepShape, float]) -> None:
        self._seconds = dict(seconds)
        self._speed = 1.0

    def __str__(self) -> str:
        return ", ".join(f"{shape} {1000 * self.of(shape):.1f} ms" for shape in self._seconds)

    def of(self, shape: StepShape) -> float:
        return self._seconds[shape] * self._speed

    def saw(self, shape: StepShape, seconds: float) -> None:
        """A round of this shape took so long; shapes that are not known are ignored."""
        if shape in self._seconds and seconds > 0:
            ratio = min(max(seconds / self.of(shape), 1 / OUTLIER), OUTLIER)
            self._speed *= ratio**FOLLOW
            self._seconds[shape] *= ratio**LEARN


def round_shapes(table: Table) -> tuple[StepShape, ...]:
    """The shapes that rounds without a chunk choose from."""
    return (*(StepShape(n, 0) for n in table.decode), *table.windows)


def measure(device: Device) -> RoundCosts:
    """Run each shape a few times on the scratch page, in turns, and keep the shortest time. It changes no state."""
    shapes = round_shapes(device.programs.table)
    best = dict.fromkeys(shapes, math.inf)
    started = time.perf_counter()
    for _ in range(REPEATS):
        if time.perf_counter() - started > BUDGET_S:
            break
        for shape in shapes:
            begun = time.perf_counter()
            _run(device, shape)
            best[shape] = min(best[shape], time.perf_counter() - begun)
    return RoundCosts(best)


def measured(device: Device, cache_file: Path | None) -> RoundCosts:
    """The costs of this device: from `cache_file` if it holds them, else measured now and written there."""
    shapes = {str(shape): shape for shape in round_shapes(device.programs.table)}
    if cache_file is not None:
        try:
            stored = json.loads(cache_file.read_text())
            seconds = {shape: float(stored[name]) for name, shape in shapes.items()}
            if all(0 < value < math.inf for value in seconds.values()):
                return RoundCosts(seconds)
        except (OSError, ValueError, KeyError, TypeError):
            pass
    costs = measure(device)
    if cache_file is not None:
        try:
            part = cache_file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({name: costs.of(shape) for name, shape in shapes.items()}))
            part.replace(cache_file)
        except OSError:
            pass
    return costs


def _run(device: Device, shape: StepShape) -> None:
    """One full round of padding lanes: every row writes to the scratch page, and no row's draw counts."""
    table = device.programs.table
    part = empty_part(shape.parts[0], table.widths)
    reach = min(table.widths.values()) * device.page_size
    part["start"][:] = max(0, min(CONTEXT, reach - shape.columns))
    part["length"][:] = shape.columns
    rows = table.draw_rows(shape)
    plan = Plan((Part(**part),), np.zeros(sum(table.calls(shape)), np.int32))  # type: ignore[arg-type]
    nobody = rows_from([], [], [], rows)
    for array in device.step(shape, plan):
        drawn = device.draw(array, nobody)
    drawn.tokens.block_until_ready()
