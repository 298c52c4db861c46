"""The device side of the engine: weights, cache and lane state, and one dispatched round of work."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import new_cache
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.api import TokenScore
from jaxfold.runtime.lanes import Lane
from jaxfold.runtime.memory import return_freed_memory
from jaxfold.runtime.programs import Draw
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.sampling.element import NEVER
from jaxfold.runtime.sampling.rows import MASKED
from jaxfold.runtime.sampling.rows import DrawRows
from jaxfold.runtime.sampling.rows import bias_arrays
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.sampling.rows import target_rows
from jaxfold.runtime.sampling.state import DrawState
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.table import StepShape


@dataclass(frozen=True)
class Chunk:
    """The next `length` prompt tokens, from `start` on, of a lane that is filled; `last` if they end the prompt."""

    lane: Lane
    start: int
    length: int
    last: bool
    masks: tuple[NDArray[np.int32] | None, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A lane that draws in a round: one token, and one more for each of the drafts of `source` that is right.

    `masks` has the tokens that each of these draws may give (None: any); nothing for a lane without a guide.
    """

    lane: Lane
    drafts: tuple[int, ...] = ()
    source: str = ""
    masks: tuple[NDArray[np.int32] | None, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a lane has drawn: its right drafts and the token after them, with scores and labels where it asked."""

    drawing: Drawing
    tokens: list[int]
    scores: tuple[TokenScore, ...] = ()
    labels: tuple[float, ...] = ()


@dataclass(frozen=True)
class Round:
    """Work that was dispatched: who drew (in row order, by call of the draw), and the draws to wait for.

    `scored` are the draws that score the chunk's tokens, each with how many of its rows do.

    A round with drafts must be collected before the next one is dispatched: until then nobody knows where its lanes
    stand.
    """

    drawn: tuple[tuple[Drawing, ...], ...]
    chunk: Chunk | None
    shape: StepShape
    draws: tuple[Draw, ...]
    hidden: jax.Array
    dispatched: float
    scored: tuple[tuple[Draw, int], ...] = ()

    @property
    def verifies(self) -> bool:
        return self.shape.columns > 1

    def wait(self) -> list[Found]:
        """Block until the work is done; what each lane has drawn."""
        if not self.draws:
            self.hidden.block_until_ready()
        return [found for group in zip(self.drawn, self.draws, strict=True) for found in _found(*group)]

    def prompt_scores(self) -> tuple[TokenScore, ...]:
        """Scores of the tokens after each of the chunk's, where they were asked for."""
        if self.chunk is None:
            return ()
        top = self.chunk.lane.job.request.logprobs or 0
        return tuple(score for draw, count in self.scored for score in scores_of(draw, range(count), top))


def _found(drawings: Sequence[Drawing], draw: Draw) -> Iterator[Found]:
    """What the lanes of one call of the draw have drawn."""
    tokens, first = np.asarray(draw.tokens).tolist(), 0
    for drawing in drawings:
        count = 1
        for draft in drawing.drafts:
            if tokens[first + count - 1] != draft:
                break
            count += 1
        request = drawing.lane.job.request
        scores: tuple[TokenScore, ...] = ()
        if request.logprobs is not None:
            scores = scores_of(draw, range(first, first + count), request.logprobs)
        labels: tuple[float, ...] = ()
        if request.labels and not drawing.lane.committed:
            values = np.asarray(draw.logits)[first, list(request.labels)].astype(np.float64)
            labels = tuple((values - float(np.asarray(draw.scored.total)[first])).tolist())
        yield Found(drawing, tokens[first : first + count], scores, labels)
        first += 1 + len(drawing.drafts)


class Device:
    """Owns the arrays that steps and draws donate and replace. Used by the engine's thread only."""

    alone = True
    """Whether this process can go on after a failed step; with other hosts' arrays gone, too, it cannot."""

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
        place, stored = programs.place, programs.place.sharing.stored(programs.cfg)
        self._new_cache = place.maker(partial(new_cache, stored, pages, page_size, kv_dtype), place.cache_spec)
        lanes = programs.table.lanes
        self._new_state = place.maker(partial(new_state, lanes, stored.vocab_size, context), place.state_specs)
        self._written = place.gathering(partial(_written, groups=programs.cfg.layer_groups))
        self.cache: Cache
        self.state: DrawState
        self._renew()

    @property
    def cfg(self) -> DecoderConfig:
        return self.programs.cfg

    # Every call of the device: these and nothing else, so that several hosts can make the same ones.

    def step(self, shape: StepShape, plan: Plan) -> tuple[jax.Array, ...]:
        """Start one step: hidden float32[R, hidden_size] for each of the draws that may follow it."""
        hidden, self.cache = self.programs.step(shape, self.weights, self.cache, plan, self.state.last)
        return hidden

    def draw(
        self, hidden: jax.Array, rows: DrawRows, mask: NDArray[np.int32] | None = None, whole: bool = False
    ) -> Draw:
        """Start one draw of R rows from what the last step gave for it.

        `mask` int32[R, mask_words] is for rows with the word `MASKED`; with `whole` the host can read the logits.
        """
        draw, self.state = self.programs.draw(self.weights, hidden, self.state, rows, mask)
        return draw._replace(logits=self.programs.whole(draw.logits)) if whole else draw

    def reset(self, slot: int, ids: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Clear a slot's lane state and set its logit bias, as `bias_arrays` gives it."""
        self.state = self.programs.reset(self.state, slot, ids, values)

    def written(self, pages: Mapping[str, NDArray[np.int32]]) -> list[NDArray[np.generic]]:
        """Keys and values on these pages of each group, by token, as unsigned bits.

        One uint[tokens, kv_heads, head_dim] for the keys of each layer, then for its values.
        """
        return [np.asarray(pool) for pool in self._written(self.cache, dict(pages))]

    def rebuild(self) -> None:
        """Fresh cache and lane state, after a failed step, whose donated arrays are gone."""
        self._renew()

    def _renew(self) -> None:
        if hasattr(self, "cache"):
            # The old arrays go first: two caches at once may not fit.
            del self.cache, self.state
            # The C library may have put them into another thread's heap, where the new ones would not find the room.
            return_freed_memory()
        self.cache = self._new_cache()
        self.state = self._new_state()

    def begin(self, lane: Lane) -> None:
        """Clear the slot's lane state and set the request's logit bias."""
        ids, values = bias_arrays(lane.job.request.sampling.logit_bias)
        self.reset(lane.slot, ids, values)

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
        rows = np.zeros(sum(self.programs.table.calls(shape)), np.int32)
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
            groups = [[*(groups[0] if groups else ()), Drawing(chunk.lane, masks=chunk.masks)]]
        scores = chunk is not None and chunk.lane.job.request.score_prompt
        if chunk and scores:
            first = width * self.programs.table.groups(shape)
            rows[first : first + chunk.length] = np.arange(chunk.length, dtype=np.int32)
        parts = [self._decode_part(decoding, shape)] if shape.decode else []
        if chunk:
            parts.append(self._chunk_part(chunk, shape.chunk))
        plan = Plan(tuple(parts), rows)  # type: ignore[arg-type]
        hidden = self.step(shape, plan)
        # Only as many draws as have rows: a crowd's window often holds fewer drafts than it could.
        draws = [self._draw(drawings, array, width) for drawings, array in zip(groups, hidden, strict=False)]
        scored = self._score(chunk, hidden[self.programs.table.groups(shape) :]) if chunk and scores else ()
        return Round(tuple(map(tuple, groups)), chunk, shape, tuple(draws), hidden[0], now, scored)

    def _score(self, chunk: Chunk, hidden: Sequence[jax.Array]) -> tuple[tuple[Draw, int], ...]:
        """Score the prompt's tokens that follow those of a chunk, whose rows `hidden` holds in order."""
        targets = chunk.lane.job.request.prompt_ids[chunk.start + 1 :][: chunk.length]
        scored, first = [], 0
        for array in hidden:
            wanted = targets[first : first + array.shape[0]]
            if wanted:
                scored.append((self.draw(array, target_rows(wanted, array.shape[0])), len(wanted)))
            first += array.shape[0]
        return tuple(scored)

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

    def _draw(self, drawings: Sequence[Drawing], hidden: jax.Array, width: int) -> Draw:
        lanes = [drawing.lane for drawing in drawings]
        positions = [lane.job.prompt_tokens + lane.issued for lane in lanes]
        drafts = [drawing.drafts for drawing in drawings]
        scored = [lane.job.request.logprobs is not None or bool(lane.job.request.labels) for lane in lanes]
        rows = rows_from(
            [lane.job.prepared for lane in lanes],
            positions,
            [lane.slot for lane in lanes],
            width,
            drafts if any(drafts) else (),
            scored if any(scored) else (),
        )
        mask = self._mask(drawings, rows) if any(drawing.masks for drawing in drawings) else None
        labels = any(lane.job.request.labels and not lane.committed for lane in lanes)
        return self.draw(hidden, rows, mask, labels)

    def _mask(self, drawings: Sequence[Drawing], rows: DrawRows) -> NDArray[np.int32]:
        """The masks of a draw's rows, which are marked in `rows`."""
        mask = np.zeros((len(rows.words), self.programs.mask_words), np.int32)
        row = 0
        for drawing in drawings:
            for place, one in enumerate(drawing.masks):
                if one is not None:
                    mask[row + place] = one
                    rows.words[row + place, MASKED] = 1
            row += 1 + len(drawing.drafts)
        return mask

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
            for row, lane in zip(table, lanes, strict=False):
                row[:] = lane.tables[group]
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


def _written(cache: Cache, pages: dict[str, jax.Array], *, groups: tuple[str, ...]) -> list[jax.Array]:
    """See `Device.written`; `groups` names the cache group of each layer."""
    bits = jnp.uint16 if cache.keys[0].dtype.itemsize == 2 else jnp.uint32

    def tokens(pool: jax.Array, group: str) -> jax.Array:
        found = pool[:, pages[group]]
        found = found.reshape(found.shape[0], -1, found.shape[3]).transpose(1, 0, 2)
        return lax.bitcast_convert_type(found, bits)

    return [tokens(pool, g) for pools in (cache.keys, cache.values) for pool, g in zip(pools, groups, strict=True)]


def scores_of(draw: Draw, rows: Sequence[int], top: int) -> tuple[TokenScore, ...]:
    """Scores of these rows, with the `top` likeliest tokens each. Blocks until they are there."""
    totals = np.asarray(draw.scored.total).tolist()
    chosen = np.asarray(draw.scored.chosen).tolist()
    values, ids = np.asarray(draw.scored.values), np.asarray(draw.scored.ids)
    found = []
    for row in rows:
        likeliest = zip(ids[row, :top].tolist(), values[row, :top].tolist(), strict=True)
        best = tuple((token, value - totals[row]) for token, value in likeliest if value > NEVER)
        found.append(TokenScore(chosen[row] - totals[row], best))
    return tuple(found)
