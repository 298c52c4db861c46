"""The device side of the engine: weights, cache and lane state, and one dispatched round of work."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import new_cache
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.sampling.rows import bias_arrays
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.state import DrawState
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.table import StepShape


@dataclass(frozen=True)
class Chunk:
    """The next `length` prompt tokens of a lane that is being filled; `last` if they end the prompt."""

    lane: Lane
    length: int
    last: bool


@dataclass(frozen=True)
class Drawing:
    """A lane that draws in a round: one token, and one more for each of the drafts of `source` that is right."""

    lane: Lane
    drafts: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Round:
    """Work that was dispatched: who drew (in row order, by call of the draw), and the arrays to wait for.

    A round with drafts must be collected before the next one is dispatched: until then nobody knows where its lanes
    stand.
    """

    drawn: tuple[tuple[Drawing, ...], ...]
    chunk: Chunk | None
    shape: StepShape
    tokens: tuple[jax.Array, ...]
    hidden: jax.Array
    dispatched: float

    @property
    def verifies(self) -> bool:
        return self.shape.columns > 1

    def wait(self) -> list[tuple[Drawing, list[int]]]:
        """Block until the work is done; each lane's new tokens: its right drafts and the one drawn after them."""
        if not self.tokens:
            self.hidden.block_until_ready()
        found = []
        for drawings, array in zip(self.drawn, self.tokens, strict=True):
            tokens, first = np.asarray(array).tolist(), 0
            for drawing in drawings:
                count = 1
                for draft in drawing.drafts:
                    if tokens[first + count - 1] != draft:
                        break
                    count += 1
                found.append((drawing, tokens[first : first + count]))
                first += 1 + len(drawing.drafts)
        return found


class Device:
    """Owns the arrays that steps and draws donate and replace. Used by the engine's thread only."""

    def __init__(
        self,
        programs: Programs,
        weights: Weights,
        pages: Mapping[str, int],
        page_size: int,
        kv_dtype: jnp.dtype,
        context: int,
    ) -> None:
        self.programs = programs
        self.weights = weights
        self.pages = pages
        self.page_size = page_size
        self._kv_dtype = kv_dtype
        self._context = context
        self.cache: Cache
        self.state: DrawState
        self.rebuild()

    @property
    def cfg(self) -> DecoderConfig:
        return self.programs.cfg

    def rebuild(self) -> None:
        """Fresh cache and lane state: at start, and after a failed step, whose donated arrays are gone."""
        if hasattr(self, "cache"):
            # The old arrays go first: two caches at once may not fit.
            del self.cache, self.state
        self.cache = new_cache(self.cfg, self.pages, self.page_size, self._kv_dtype)
        self.state = new_state(self.programs.table.lanes, self.cfg.vocab_size, self._context)

    def begin(self, lane: Lane) -> None:
        """Clear the slot's lane state and set the request's logit bias."""
        ids, values = bias_arrays(lane.job.request.sampling.logit_bias)
        self.state = self.programs.reset(self.state, lane.slot, ids, values)

    def dispatch(self, decoding: Sequence[Drawing], chunk: Chunk | None, shape: StepShape, now: float) -> Round:
        """Run one step (and the draws where rows need them) without waiting for it.

        Args:
            decoding: lanes that draw; their last drawn token is read on the device.
            chunk: prompt tokens to fill beside them.
            shape: a program of the table that holds both; its columns hold the longest drafts.
            now: seconds, kept in the round.
        """
        width = self.programs.table.draw_rows(shape)
        groups = self._grouped(decoding, width)
        rows = np.zeros(width * self.programs.table.groups(shape), np.int32)
        lane = 0
        for group, drawings in enumerate(groups):
            row = group * width
            for drawing in drawings:
                count = 1 + len(drawing.drafts)
                rows[row : row + count] = np.arange(count, dtype=np.int32) + lane * shape.columns
                row, lane = row + count, lane + 1
        if chunk and chunk.last:
            # A chunk never runs beside drafts: one draw takes the rows of both.
            rows[len(decoding)] = shape.decode + chunk.length - 1
            groups = [[*(groups[0] if groups else ()), Drawing(chunk.lane)]]
        parts = [self._decode_part(decoding, shape)] if shape.decode else []
        if chunk:
            parts.append(self._chunk_part(chunk, shape.chunk))
        plan = Plan(tuple(parts), rows)  # type: ignore[arg-type]
        hidden, self.cache = self.programs.step(shape, self.weights, self.cache, plan, self.state.last)
        # Only as many draws as have rows: a crowd's window often holds fewer drafts than it could.
        tokens = [self._draw(drawings, array, width) for drawings, array in zip(groups, hidden, strict=False)]
        return Round(tuple(map(tuple, groups)), chunk, shape, tuple(tokens), hidden[0], now)

    def _grouped(self, drawings: Sequence[Drawing], width: int) -> list[list[Drawing]]:
        """Lanes by call of the draw, in order: each call has `width` rows, and no lane is split between two."""
        groups: list[list[Drawing]] = []
        room = 0
        for drawing in drawings:
            count = 1 + len(drawing.drafts)
            if count > room:
                groups.append([])
                room = width
            groups[-1].append(drawing)
            room -= count
        return groups

    def _draw(self, drawings: Sequence[Drawing], hidden: jax.Array, width: int) -> jax.Array:
        lanes = [drawing.lane for drawing in drawings]
        positions = [lane.job.prompt_tokens + lane.issued for lane in lanes]
        drafts = [drawing.drafts for drawing in drawings]
        rows = rows_from(
            [lane.job.prepared for lane in lanes],
            positions,
            [lane.slot for lane in lanes],
            width,
            drafts if any(drafts) else (),
        )
        tokens, _, self.state = self.programs.draw(self.weights, hidden, self.state, rows)
        return tokens

    def _decode_part(self, drawings: Sequence[Drawing], shape: StepShape) -> Part:
        part = empty_part(shape.parts[0], self.programs.table.widths)
        lanes = [drawing.lane for drawing in drawings]
        count = len(lanes)
        part["tokens"][:count, 0] = -1
        for row, drawing in zip(part["tokens"], drawings, strict=False):
            row[1 : 1 + len(drawing.drafts)] = drawing.drafts
        part["slot"][:count] = [lane.slot for lane in lanes]
        part["start"][:count] = [lane.position for lane in lanes]
        part["length"][:count] = [1 + len(drawing.drafts) for drawing in drawings]
        part["keep"][:count] = [lane.position > 0 for lane in lanes]
        for group, table in part["tables"].items():
            np.stack([lane.tables[group] for lane in lanes], out=table[:count])
        return Part(**part)

    def _chunk_part(self, chunk: Chunk, width: int) -> Part:
        lane, length = chunk.lane, chunk.length
        part = empty_part(StepShape(0, width).parts[0], self.programs.table.widths)
        part["tokens"][0, :length] = lane.job.request.prompt_ids[lane.filled : lane.filled + length]
        part["slot"][0] = lane.slot
        part["start"][0] = lane.filled
        part["length"][0] = length
        part["keep"][0] = min(lane.filled, 1)
        for group, table in part["tables"].items():
            table[0] = lane.tables[group]
        return Part(**part)
