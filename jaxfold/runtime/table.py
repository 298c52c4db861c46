"""Which programs exist: every shape that a step or a draw can take, decided once at start."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxfold.models.plan import PartShape

CHUNKS = (32, 128, 256)
"""Prefill chunk widths. The largest runs only while nothing else decodes or waits."""

SHARED_CHUNKS = (32, 128)
"""Chunk widths that also exist in one step with every decoding lane."""


@dataclass(frozen=True)
class StepShape:
    """A step program: a decode grid `[decode, 1]`, a prefill grid `[1, chunk]`, or both (0: absent)."""

    decode: int
    chunk: int

    @property
    def parts(self) -> tuple[PartShape, ...]:
        shapes = [PartShape(self.decode, 1)] if self.decode else []
        if self.chunk:
            shapes.append(PartShape(1, self.chunk))
        return tuple(shapes)

    @property
    def rows(self) -> int:
        """Hidden rows that the step returns. A filling lane never decodes, so it fits among the decode rows."""
        return max(self.decode, 1)

    def __str__(self) -> str:
        names = [f"decode {self.decode}"] if self.decode else []
        if self.chunk:
            names.append(f"prefill {self.chunk}")
        return " + ".join(names)


@dataclass(frozen=True)
class Table:
    """All programs of one engine: the steps, the draws (by row count), and the slot reset.

    Attributes:
        lanes: replies that run at once.
        decode: widths of the decode grids, ascending; the last is `lanes`.
        chunks: prefill widths, ascending.
        shared_chunks: prefill widths that also run beside `lanes` decoding rows.
        widths: cache group -> table width in pages.
    """

    lanes: int
    decode: tuple[int, ...]
    chunks: tuple[int, ...]
    shared_chunks: tuple[int, ...]
    widths: Mapping[str, int]

    @property
    def steps(self) -> tuple[StepShape, ...]:
        alone = [StepShape(n, 0) for n in self.decode] + [StepShape(0, c) for c in self.chunks]
        return (*alone, *(StepShape(self.lanes, c) for c in self.shared_chunks))

    @property
    def count(self) -> int:
        """Programs to compile: steps, draws and the reset."""
        return len(self.steps) + len(self.decode) + 1

    def decode_width(self, lanes: int) -> int:
        """The narrowest decode grid that holds `lanes` lanes."""
        return next(n for n in self.decode if n >= lanes)

    def chunk_width(self, tokens: int, shared: bool) -> int:
        """The narrowest chunk that holds `tokens`, or the widest there is."""
        widths = self.shared_chunks if shared else self.chunks
        return next((c for c in widths if c >= tokens), widths[-1])


def make_table(lanes: int, widths: Mapping[str, int]) -> Table:
    """The table of an engine with `lanes` lanes: at most 12 programs."""
    decode = tuple(sorted({1, (lanes + 1) // 2, lanes}))
    return Table(lanes, decode, CHUNKS, SHARED_CHUNKS if lanes > 1 else (), widths)
