"""Which programs exist: every shape that a step or a draw can take, decided once at start."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxfold.models.plan import PartShape

CHUNKS = (32, 128, 256)
"""Prefill chunk widths. The largest runs only while nothing else decodes or waits."""

SHARED_CHUNKS = (32, 128)
"""Chunk widths that exist in one step with every decoding lane."""

DRAW_ROWS = 8
"""Rows of the wider draw, at least: those of one lane's whole verify window."""

CROWD_COLUMNS = 4
"""Columns of the verify window that several lanes share."""

CROWD_LANES = 4
"""Lanes of that window, at least, where there are so many: with a column each they are the 16 rows that cost least."""


@dataclass(frozen=True)
class StepShape:
    """A step program: a grid of `decode` lanes and `columns` columns, a prefill grid `[1, chunk]`, or both (0: absent).

    One column decodes; more verify drafts, and a lane without any uses the first column alone.
    """

    decode: int
    chunk: int
    columns: int = 1

    @property
    def parts(self) -> tuple[PartShape, ...]:
        shapes = [PartShape(self.decode, self.columns)] if self.decode else []
        if self.chunk:
            shapes.append(PartShape(1, self.chunk))
        return tuple(shapes)

    @property
    def drawn(self) -> int:
        """Rows that may draw a token. A filling lane never decodes, so it fits among the decode rows."""
        return max(self.decode * self.columns, 1)

    def __str__(self) -> str:
        verb = f"verify {self.columns} x" if self.columns > 1 else "decode"
        names = [f"{verb} {self.decode}"] if self.decode else []
        if self.chunk:
            names.append(f"prefill {self.chunk}")
        return " + ".join(names)


@dataclass(frozen=True)
class Table:
    """All programs of one engine: the steps, the draws (by row count), and the slot reset.

    Attributes:
        lanes: replies that run at once.
        decode: widths of the decode grids, ascending; the last is `lanes`.
        windows: the grids that verify drafts, for one lane and for several; empty where nothing is drafted.
        chunks: prefill widths, ascending.
        shared_chunks: prefill widths that also run beside `lanes` decoding rows.
        draws: row counts of the draws, ascending; a step whose rows are more than the last is drawn in several calls.
        widths: cache group -> table width in pages.
    """

    lanes: int
    decode: tuple[int, ...]
    windows: tuple[StepShape, ...]
    chunks: tuple[int, ...]
    shared_chunks: tuple[int, ...]
    draws: tuple[int, ...]
    widths: Mapping[str, int]

    @property
    def steps(self) -> tuple[StepShape, ...]:
        alone = [StepShape(n, 0) for n in self.decode] + [StepShape(0, c) for c in self.chunks]
        return (*alone, *self.windows, *(StepShape(self.lanes, c) for c in self.shared_chunks))

    @property
    def count(self) -> int:
        """Programs to compile: steps, draws and the reset."""
        return len(self.steps) + len(self.draws) + 1

    def decode_width(self, lanes: int) -> int:
        """The narrowest decode grid that holds `lanes` lanes."""
        return next(n for n in self.decode if n >= lanes)

    def chunk_shape(self, tokens: int, shared: bool) -> StepShape:
        """The step with the narrowest chunk that holds `tokens`, or with the widest there is.

        A chunk on its own takes a step beside idle lanes where no other has that width.
        """
        found = {c: StepShape(self.lanes, c) for c in self.shared_chunks}
        if not shared:
            found |= {c: StepShape(0, c) for c in self.chunks}
        return found[next((c for c in sorted(found) if c >= tokens), max(found))]

    def draw_rows(self, shape: StepShape) -> int:
        """Rows of each draw after a step of this shape."""
        return next((n for n in self.draws if n >= shape.drawn), self.draws[-1])

    def groups(self, shape: StepShape) -> int:
        """Draws that every drawn row of this shape may need: no lane's window is split between two."""
        fitting = self.draw_rows(shape) // shape.columns * shape.columns
        return -(-shape.drawn // fitting)

    @property
    def scoring(self) -> StepShape:
        """The step whose every row can be scored: prompts whose log-probabilities are asked for run through it."""
        return StepShape(0, self.chunks[0])

    def calls(self, shape: StepShape) -> tuple[int, ...]:
        """Rows of each draw that may follow a step of this shape: those that draw tokens, then those that score."""
        scored = -(-shape.chunk // self.draws[-1]) if shape == self.scoring else 0
        return (self.draw_rows(shape),) * self.groups(shape) + (self.draws[-1],) * scored


def make_table(lanes: int, widths: Mapping[str, int], draft_tokens: int) -> Table:
    """The table of an engine with `lanes` lanes that verifies up to `draft_tokens` drafts a round: at most 12 programs.

    Half of the lanes have a decode grid but no draw of their own, and chunks of 128 have no step of their own, only the
    one beside every lane: on the CPU the programs that verify drafts are worth more.
    """
    decode = tuple(sorted({1, (lanes + 1) // 2, lanes}))
    columns = draft_tokens + 1
    windows: list[StepShape] = []
    if draft_tokens:
        windows.append(StepShape(1, 0, columns))
        if lanes > 1:
            crowd = min(lanes, max(CROWD_LANES, (lanes + 1) // 2))
            windows.append(StepShape(crowd, 0, min(columns, CROWD_COLUMNS)))
    shared = SHARED_CHUNKS if lanes > 1 else ()
    chunks = tuple(c for c in CHUNKS if c not in shared[1:])
    return Table(lanes, decode, tuple(windows), chunks, shared, _draws(max(columns, lanes)), widths)


def draft_table(lanes: int, widths: Mapping[str, int]) -> Table:
    """The table of a draft model: nothing waits beside its chunks, and nothing is verified."""
    decode = tuple(sorted({1, lanes}))
    return Table(lanes, decode, (), (CHUNKS[0], CHUNKS[-1]), (), _draws(lanes), widths)


def _draws(rows: int) -> tuple[int, ...]:
    """Row counts of the draws where one call should hold `rows` rows: whole windows of a crowd."""
    return (1, -(-max(DRAW_ROWS, rows) // CROWD_COLUMNS) * CROWD_COLUMNS)
