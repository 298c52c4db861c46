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
class Round:
    """Work that was dispatched: which lanes drew a token (in row order), and the arrays to wait for."""

    drawn: tuple[Lane, ...]
    chunk: Chunk | None
    shape: StepShape
    tokens: jax.Array | None
    hidden: jax.Array
    dispatched: float

    def wait(self) -> list[int]:
        """Block until the work is done; the drawn tokens in row order."""
        if self.tokens is None:
            self.hidden.block_until_ready()
            return []
        return [int(token) for token in np.asarray(self.tokens)[: len(self.drawn)]]


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

    def dispatch(self, decoding: Sequence[Lane], chunk: Chunk | None, width: int, now: float) -> Round:
        """Run one step (and a draw where a row needs one) without waiting for it.

        Args:
            decoding: lanes that draw one token each; their last drawn token is read on the device.
            chunk: prompt tokens to fill beside them.
            width: the chunk program's width (0 without a chunk).
            now: seconds, kept in the round.
        """
        table = self.programs.table
        grid = 0 if not decoding else table.lanes if chunk else table.decode_width(len(decoding))
        shape = StepShape(grid, width)
        parts = [self._decode_part(decoding, grid)] if grid else []
        if chunk:
            parts.append(self._chunk_part(chunk, width))
        rows = np.zeros(shape.rows, np.int32)
        rows[: len(decoding)] = np.arange(len(decoding), dtype=np.int32)
        drawing = list(decoding)
        if chunk and chunk.last:
            rows[len(decoding)] = grid + chunk.length - 1
            drawing.append(chunk.lane)
        plan = Plan(tuple(parts), rows)  # type: ignore[arg-type]
        hidden, self.cache = self.programs.step(shape, self.weights, self.cache, plan, self.state.last)
        tokens = None
        if drawing:
            positions = [lane.job.prompt_tokens + lane.issued for lane in drawing]
            settings = rows_from(
                [lane.job.prepared for lane in drawing], positions, [lane.slot for lane in drawing], shape.rows
            )
            tokens, _, self.state = self.programs.draw(self.weights, hidden, self.state, settings)
        return Round(tuple(drawing), chunk, shape, tokens, hidden, now)

    def _decode_part(self, lanes: Sequence[Lane], width: int) -> Part:
        part = empty_part(StepShape(width, 0).parts[0], self.programs.table.widths)
        count = len(lanes)
        part["tokens"][:count] = -1
        part["slot"][:count] = [lane.slot for lane in lanes]
        part["start"][:count] = [lane.position for lane in lanes]
        part["length"][:count] = 1
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
