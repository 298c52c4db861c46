"""One step's work as plain fixed-shape arrays: which tokens, of which lanes, at which positions, in which pages."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

Tables = dict[str, jax.Array]


@register_dataclass
@dataclass(frozen=True)
class Part:
    """A grid of lanes x columns: decode `[n, 1]`, a verify window `[n, w]` or a prefill chunk `[1, c]`.

    Attributes:
        tokens: int32[lanes, columns]; -1 stands for "the last token drawn in this lane's slot".
        slot: int32[lanes], row of the per-slot state (last token, recurrent state).
        start: int32[lanes], absolute position of the first column.
        length: int32[lanes], columns in use; 0 for a padding lane. Padding rows write to the scratch page only.
        keep: int32[lanes], columns kept of the lane's previous window; 0 for a fresh lane. Recurrent families
            commit their state by it; attention does not need it.
        tables: {cache group: int32[lanes, table width]}, pages in logical order.
    """

    tokens: jax.Array
    slot: jax.Array
    start: jax.Array
    length: jax.Array
    keep: jax.Array
    tables: Tables


@register_dataclass
@dataclass(frozen=True)
class Plan:
    """One step: one to three parts whose rows are concatenated for products and norms.

    Attributes:
        parts: the grids, in row order.
        rows: int32[r], the flat rows (over all parts, lane-major) whose hidden states the step returns.
    """

    parts: tuple[Part, ...]
    rows: jax.Array


@dataclass(frozen=True)
class PartShape:
    """The static shape of a part; a step program is compiled for a tuple of these."""

    lanes: int
    columns: int


def empty_part(shape: PartShape, tables: Mapping[str, int]) -> dict[str, Any]:
    """Host arrays of an all-padding part; `tables` maps a cache group to its table width in pages."""
    return {
        "tokens": np.zeros((shape.lanes, shape.columns), np.int32),
        "slot": np.zeros(shape.lanes, np.int32),
        "start": np.zeros(shape.lanes, np.int32),
        "length": np.zeros(shape.lanes, np.int32),
        "keep": np.zeros(shape.lanes, np.int32),
        "tables": {group: np.zeros((shape.lanes, width), np.int32) for group, width in tables.items()},
    }


def abstract_plan(shapes: Sequence[PartShape], rows: int, tables: Mapping[str, int]) -> Plan:
    """The plan's shapes as `jax.ShapeDtypeStruct`s, for compiling ahead of time."""

    def arr(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.int32)

    parts = tuple(
        Part(
            tokens=arr(shape.lanes, shape.columns),  # type: ignore[arg-type]
            slot=arr(shape.lanes),  # type: ignore[arg-type]
            start=arr(shape.lanes),  # type: ignore[arg-type]
            length=arr(shape.lanes),  # type: ignore[arg-type]
            keep=arr(shape.lanes),  # type: ignore[arg-type]
            tables={group: arr(shape.lanes, width) for group, width in tables.items()},  # type: ignore[misc]
        )
        for shape in shapes
    )
    return Plan(parts=parts, rows=arr(rows))  # type: ignore[arg-type]
