"""The device's calls as messages, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.runtime.hosts.frames import Kind
from jaxfold.runtime.hosts.frames import Message
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import Table

Array = np.ndarray[Any, Any]


def step_message(table: Table, shape: StepShape, plan: Plan) -> Message:
    """Numbers: the step's place in the table. Arrays: those of each part, tables by group's name, and the rows."""
    arrays: list[Any] = []
    for part in plan.parts:
        arrays += [part.tokens, part.slot, part.start, part.length, part.keep]
        arrays += [part.tables[group] for group in sorted(part.tables)]
    return Message(Kind.STEP, (table.steps.index(shape),), arrays=(*arrays, plan.rows))  # type: ignore[arg-type]


def step_of(table: Table, message: Message) -> tuple[StepShape, Plan]:
    """What `step_message` was made from."""
    shape = table.steps[message.numbers[0]]
    arrays: list[Any] = list(message.arrays)
    groups, parts = sorted(table.widths), []
    for _ in shape.parts:
        tokens, slot, start, length, keep, *rest = arrays
        parts.append(Part(tokens, slot, start, length, keep, dict(zip(groups, rest, strict=False))))
        arrays = rest[len(groups) :]
    return shape, Plan(tuple(parts), arrays[0])


def draw_message(call: int, rows: DrawRows, mask: Array | None, whole: bool) -> Message:
    """Numbers: which of the last step's draws it is, whether the logits are gathered. Arrays: rows, and the mask."""
    arrays = (rows.reals, rows.words) if mask is None else (rows.reals, rows.words, mask)
    return Message(Kind.DRAW, (call, whole), arrays=arrays)


def draw_of(message: Message) -> tuple[int, DrawRows, Array | None, bool]:
    """What `draw_message` was made from."""
    reals, words, *mask = message.arrays
    return message.numbers[0], DrawRows(reals, words), mask[0] if mask else None, bool(message.numbers[1])


def reset_message(slot: int, ids: Array, values: Array) -> Message:
    """Numbers: the slot."""
    return Message(Kind.RESET, (slot,), arrays=(ids, values))


def written_message(pages: Mapping[str, Array]) -> Message:
    """Arrays: the pages, by group's name."""
    return Message(Kind.WRITTEN, arrays=tuple(pages[group] for group in sorted(pages)))


def written_of(table: Table, message: Message) -> dict[str, Array]:
    """What `written_message` was made from."""
    return dict(zip(sorted(table.widths), message.arrays, strict=True))
