"""The exactness self-check: the same rows alone and in company, as decode and as prefill, compared bit by bit.

It runs through the very programs that serve, on this machine, and its verdict is the engine's level:
A: decode and prefill rows agree, so a reply's own pages may serve as prefix; B: each agrees with itself; C: neither.
Where the rows of verify windows differ from decoded ones, nothing is drafted.
"""

import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from typing import get_args

import numpy as np

from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.api import ExactnessLevel
from jaxfold.runtime.device import Device
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.table import StepShape

Row = tuple[np.ndarray, ...]
Decides = Literal["A", "B", "draft"]

PREFIX = 252
"""Tokens before the compared rows: those cross the boundary of a key block and of a page."""
ROWS = 24
"""Rows compared by most lines of the table."""
SHARED_ROWS = 3
"""Rows compared beside a prefill chunk, where each costs a whole chunk."""


@dataclass(frozen=True)
class Comparison:
    """One line of the table: which form, against which, and how many of its rows had other logit bits."""

    form: str
    against: str
    rows: int
    differing: int
    decides: Decides  # the level that is lost if rows differ, or drafting


@dataclass(frozen=True)
class Verdict:
    """The comparisons and the level that follows from them."""

    comparisons: tuple[Comparison, ...]

    @property
    def level(self) -> ExactnessLevel:
        lost = {c.decides for c in self.comparisons if c.differing}
        return "C" if "B" in lost else "B" if "A" in lost else "A"

    @property
    def drafts(self) -> bool:
        """Whether verified rows are those of decoding, so that drafts may be used."""
        return not any(c.differing for c in self.comparisons if c.decides == "draft")


class SelfCheck:
    """Runs rows of one fixed pseudo-random text through a device's programs. It leaves the cache's contents undefined.

    What is compared is the keys and values that every layer wrote for a row, and the row's logits: any difference
    in a layer's output shows in the keys of the next one.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._table = device.programs.table
        room = min(min(self._table.widths[g], count - 1) for g, count in device.pages.items()) * device.page_size
        # A small window holds a shorter text; positions beyond it have no page.
        self._rows = min(ROWS, max(1, room // 2))
        self._prefix = min(PREFIX, room - self._rows)
        random = np.random.default_rng(0)
        self._tokens = random.integers(0, device.cfg.vocab_size, self._prefix + self._rows).astype(np.int32)
        self._company = random.integers(0, device.cfg.vocab_size, PREFIX + ROWS).astype(np.int32)

    def run(self) -> Verdict:
        """Every comparison that the table of programs allows."""
        last = range(self._prefix, self._prefix + self._rows)
        widest = self._table.chunks[-1]
        large = self._prefill(self._prefix + self._rows, widest)
        found = [
            _compare(f"prefill by {chunk}", f"prefill by {widest}", self._prefill(len(self._tokens), chunk), large, "B")
            for chunk in self._table.chunks[:-1]
        ]
        alone = [self._decode(n, self._table.decode[0], 0) for n in last]
        for width in self._table.decode[1:]:
            crowd = [self._decode(n, width, width - 1) for n in last]
            found.append(_compare(f"decode among {width}", "decode alone", crowd, alone, "B"))
        for shape in self._table.windows:
            starts = range(self._prefix, self._prefix + self._rows, shape.columns)
            verified = [row for start in starts for row in self._verify(shape, start)]
            found.append(_compare(str(shape), "decode alone", verified, alone, "draft"))
        for chunk in self._table.shared_chunks:
            beside = [self._decode(n, self._table.lanes, 1, chunk) for n in last[:SHARED_ROWS]]
            found.append(_compare(f"decode beside a chunk of {chunk}", "decode alone", beside, alone, "B"))
            whole = large[-self._prefix - self._rows - 1 : -1]
            found.append(
                _compare(f"prefill by {chunk} beside decode", f"prefill by {widest}", self._beside(chunk), whole, "B")
            )
        found.append(_compare("decode", "prefill", [row[:-1] for row in alone], large[-self._rows - 1 : -1], "A"))
        found.append(_compare("decode's logits", "prefill's logits", [alone[-1][-1:]], large[-1:], "A"))
        return Verdict(tuple(found))

    def _prefill(self, tokens: int, width: int) -> list[Row]:
        """Logits where the widest chunks end, keys and values of every token, logits of the last token."""
        ends = []
        for start in range(0, tokens, width):
            length = min(width, tokens - start)
            shape = StepShape(0, width)
            part = self._part(shape, [0], [start], [self._tokens[start : start + length]])
            logits = self._run(shape, (part,), [length - 1])[0]
            if start + length == tokens or not (start + length) % self._table.chunks[-1]:
                ends.append((logits,))
        return [*ends[:-1], *self._written(0, tokens), ends[-1]]

    def _decode(self, position: int, width: int, company: int, chunk: int = 0) -> Row:
        """Keys, values and logits of the token at `position`, decoded in a grid of `width` beside `company` lanes."""
        lanes = min(company + 1, width)
        starts = [position] + [(position * (i + 1)) % 40 for i in range(1, lanes)]
        tokens = [self._tokens[position : position + 1]] + [self._company[s : s + 1] for s in starts[1:]]
        parts = [self._part(StepShape(width, 0), list(range(lanes)), starts, tokens)]
        if chunk:
            parts.append(self._part(StepShape(0, chunk), [lanes], [0], [self._company[: min(chunk, 40)]]))
        logits = self._run(StepShape(width, chunk), tuple(parts), [0])[0]
        return (*self._written(position, 1)[0], logits)

    def _verify(self, shape: StepShape, start: int) -> list[Row]:
        """Keys, values and logits of the tokens from `start` on as one verify window, beside windows of other lanes."""
        count = min(shape.columns, self._prefix + self._rows - start)
        starts = [start] + [(start * (i + 1)) % 40 for i in range(1, shape.decode)]
        tokens = [self._tokens[start : start + count]]
        tokens += [self._company[s : s + shape.columns] for s in starts[1:]]
        part = self._part(shape, list(range(shape.decode)), starts, tokens)
        logits = self._run(shape, (part,), range(count))
        return [(*row, scores) for row, scores in zip(self._written(start, count), logits, strict=True)]

    def _beside(self, chunk: int) -> list[Row]:
        """Keys and values of the text's first tokens, prefilled in one chunk while every other lane decodes."""
        width = self._table.lanes
        others = list(range(1, width))
        starts = [7 * lane % 40 for lane in others]
        decode = self._part(StepShape(width, 0), others, starts, [self._company[s : s + 1] for s in starts])
        fill = self._part(StepShape(0, chunk), [0], [0], [self._tokens[:chunk]])
        self._run(StepShape(width, chunk), (decode, fill), [0])
        return self._written(0, min(chunk, len(self._tokens)))

    def _written(self, first: int, count: int) -> list[Row]:
        """What every layer wrote for `count` tokens of lane 0 from position `first` on, as bits."""
        cfg, size = self._device.cfg, self._device.page_size
        last = (first + count - 1) // size + 1
        pages = {group: self._lane_table(group, 0, last)[first // size :] for group in cfg.groups}
        pools = self._device.written(pages)
        skip = first % size
        return [tuple(pool[skip + i] for pool in pools) for i in range(count)]

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
        """Pages of a pretended lane: lane 0 has enough for the whole text, the others a few, as far as there are."""
        size = self._device.page_size
        own, few = -(-(self._prefix + self._rows) // size), -(-64 // size)
        first, count = (1, own) if lane == 0 else (1 + own + (lane - 1) * few, few)
        table = np.zeros(width, np.int32)
        usable = max(0, min(count, width, self._device.pages[group] - first))
        table[:usable] = np.arange(first, first + usable)
        return table

    def _run(self, shape: StepShape, parts: tuple[Part, ...], rows: Sequence[int]) -> np.ndarray:
        """Run one step; the logit bits of these flat rows, of which there are no more than a draw has."""
        device = self._device
        width = self._table.draw_rows(shape)
        wanted = np.zeros(sum(self._table.calls(shape)), np.int32)
        wanted[: len(rows)] = rows
        plan = Plan(parts, wanted)  # type: ignore[arg-type]
        hidden = device.step(shape, plan)
        drawn = device.draw(hidden[0], rows_from([], [], [], width), whole=True)
        bits: np.ndarray = np.asarray(drawn.logits)[: len(rows)].view(np.uint32)
        return bits


def _compare(form: str, against: str, found: Sequence[Row], wanted: Sequence[Row], decides: Decides) -> Comparison:
    """Compare row by row; `wanted` may be longer."""

    def same(a: Row, b: Row) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    differing = sum(not same(a, b) for a, b in zip(found, wanted, strict=False))
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
    """The verdict of a file; an error of any kind that `run` catches where it is not exactly one."""
    comparisons = tuple(Comparison(**line) for line in stored["comparisons"])  # type: ignore[arg-type]
    for line in comparisons:
        counted = type(line.rows) is int and type(line.differing) is int and 0 <= line.differing <= line.rows
        if not counted or line.decides not in get_args(Decides):
            raise ValueError("not a comparison")
    if not {"A", "B"} <= {line.decides for line in comparisons}:
        raise ValueError("comparisons are missing")
    return Verdict(comparisons)
