"""The exactness self-check: the same rows alone and in company, as decode and as prefill, compared bit by bit.

It runs through the very programs that serve, on this machine, and its verdict is the engine's level:
A: decode and prefill rows agree, so a reply's own pages may serve as prefix; B: each agrees with itself; C: neither.
"""

import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.api import ExactnessLevel
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.device import Device
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.table import StepShape

PREFIX = 250
"""Tokens before the compared rows: they cross the boundary of a key block and of pages."""
ROWS = 10


@dataclass(frozen=True)
class Comparison:
    """One line of the table: which form, against which, and how many of its rows had other logit bits."""

    form: str
    against: str
    rows: int
    differing: int
    decides: ExactnessLevel  # the level that is lost if rows differ


@dataclass(frozen=True)
class Verdict:
    """The comparisons and the level that follows from them."""

    comparisons: tuple[Comparison, ...]

    @property
    def level(self) -> ExactnessLevel:
        lost = {c.decides for c in self.comparisons if c.differing}
        return "C" if "B" in lost else "B" if "A" in lost else "A"


class SelfCheck:
    """Runs rows of one fixed pseudo-random text through a device's programs. It leaves the cache's contents undefined."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._table = device.programs.table
        random = np.random.default_rng(0)
        self._tokens = random.integers(0, device.cfg.vocab_size, PREFIX + ROWS).astype(np.int32)
        self._company = random.integers(0, device.cfg.vocab_size, PREFIX + ROWS).astype(np.int32)

    def run(self) -> Verdict:
        """Every comparison that the table of programs allows."""
        last = range(PREFIX, PREFIX + ROWS)
        whole = [self._prefill(n + 1, self._table.chunks[-1]) for n in last]
        pieces = [self._prefill(n + 1, self._table.chunks[0]) for n in last]
        found = [_compare("prefill in small chunks", "prefill in large chunks", pieces, whole, "B")]
        self._prefill(PREFIX, self._table.chunks[-1])
        alone = [self._decode(n, self._table.decode[0], 0) for n in last]
        for width in self._table.decode[1:]:
            crowd = [self._decode(n, width, width - 1) for n in last]
            found.append(_compare(f"decode among {width}", "decode alone", crowd, alone, "B"))
        for chunk in self._table.shared_chunks:
            beside = [self._decode(n, self._table.lanes, 1, chunk) for n in last]
            found.append(_compare(f"decode beside a chunk of {chunk}", "decode alone", beside, alone, "B"))
        found.append(_compare("decode", "prefill", alone, whole, "A"))
        return Verdict(tuple(found))

    def _prefill(self, tokens: int, width: int) -> np.ndarray:
        """Logit bits of the last of `tokens` tokens, prefilled in chunks of at most `width`."""
        row = None
        for start in range(0, tokens, width):
            length = min(width, tokens - start)
            narrow = self._table.chunk_width(length, shared=False)
            part = self._part(StepShape(0, narrow), [0], [start], [self._tokens[start : start + length]])
            row = self._run(StepShape(0, narrow), (part,), length - 1)
        assert row is not None
        return row

    def _decode(self, position: int, width: int, company: int, chunk: int = 0) -> np.ndarray:
        """Logit bits of the token at `position`, decoded in a grid of `width` with `company` other lanes."""
        lanes = min(company + 1, width)
        starts = [position] + [(position * (i + 1)) % 40 for i in range(1, lanes)]
        tokens = [self._tokens[position : position + 1]] + [self._company[s : s + 1] for s in starts[1:]]
        shape = StepShape(width, chunk)
        parts = [self._part(StepShape(width, 0), list(range(lanes)), starts, tokens)]
        if chunk:
            length = min(chunk, 40)
            parts.append(self._part(StepShape(0, chunk), [lanes], [0], [self._company[:length]]))
        return self._run(shape, tuple(parts), 0)

    def _part(
        self, shape: StepShape, lanes: Sequence[int], starts: Sequence[int], tokens: Sequence[np.ndarray]
    ) -> Part:
        part = empty_part(shape.parts[0], self._table.widths)
        for i, (lane, start, ids) in enumerate(zip(lanes, starts, tokens, strict=True)):
            part["tokens"][i, : len(ids)] = ids
            part["start"][i], part["length"][i], part["keep"][i] = start, len(ids), min(start, 1)
            for group, table in part["tables"].items():
                table[i] = self._lane_table(group, lane, table.shape[1])
        return Part(**part)

    def _lane_table(self, group: str, lane: int, width: int) -> np.ndarray:
        """Pages of a pretended lane: lane 0 has enough for the whole text, the others share what is left."""
        size = self._device.page_size
        pages = self._device.pages[group]
        own = -(-(PREFIX + ROWS + 1) // size)
        few = -(-64 // size)
        first = 1 if lane == 0 else 1 + own + (lane - 1) * few
        count = own if lane == 0 else few
        table = np.zeros(width, np.int32)
        for i in range(min(count, width)):
            table[i] = first + i if first + i < pages else 0
        return table

    def _run(self, shape: StepShape, parts: tuple[Part, ...], row: int) -> np.ndarray:
        device = self._device
        rows = np.full(shape.rows, row, np.int32)
        plan = Plan(parts, rows)  # type: ignore[arg-type]
        hidden, device.cache = device.programs.step(shape, device.weights, device.cache, plan, device.state.last)
        greedy = prepare(SamplingParams(temperature=0.0), 0)
        settings = rows_from([greedy], [0], [0], shape.rows)
        _, scores, device.state = device.programs.draw(device.weights, hidden, device.state, settings)
        return np.asarray(jax.device_get(scores))[0].view(np.uint32)


def _compare(
    form: str, against: str, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], decides: ExactnessLevel
) -> Comparison:
    differing = sum(not np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    return Comparison(form, against, len(found), differing, decides)


def run(device: Device, cache_file: Path | None) -> Verdict:
    """The verdict for this device: from `cache_file` if it is there, else checked now and written there."""
    if cache_file is not None:
        try:
            return _read(json.loads(cache_file.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            pass
    verdict = SelfCheck(device).run()
    device.rebuild()
    if cache_file is not None:
        try:
            part = cache_file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"comparisons": [asdict(c) for c in verdict.comparisons]}))
            part.replace(cache_file)
        except OSError:
            pass
    return verdict


def _read(stored: Mapping[str, list[Mapping[str, object]]]) -> Verdict:
    comparisons = tuple(Comparison(**line) for line in stored["comparisons"])  # type: ignore[arg-type]
    if not comparisons:
        raise ValueError("no comparisons")
    return Verdict(comparisons)
