"""When drafts are worth a round, who proposes them, when a proposer is parked. Speed only: no token depends on it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from jaxfold.runtime.drafting import costs as costs_module
from jaxfold.runtime.drafting.base import Proposal
from jaxfold.runtime.drafting.costs import RoundCosts
from jaxfold.runtime.drafting.costs import measured
from jaxfold.runtime.drafting.costs import round_shapes
from jaxfold.runtime.drafting.lane import LaneDrafts
from jaxfold.runtime.drafting.planner import Planner
from jaxfold.runtime.drafting.record import LONGEST_PARK
from jaxfold.runtime.drafting.record import LOSSES
from jaxfold.runtime.drafting.record import PARK
from jaxfold.runtime.drafting.record import Record
from jaxfold.runtime.drafting.replay import ReplayProposer
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import make_table
from tests.tiny_engines import tiny_engine

TABLE = make_table(8, {"full": 8}, 7)
SURE, UNSURE = Proposal("x", (1,) * 7, 0.95), Proposal("x", (1,) * 7, 0.2)


def planner(alone: float, crowd: float) -> Planner:
    """Windows of this cost where a decode round costs 1."""
    seconds = dict.fromkeys(round_shapes(TABLE), 1.0)
    seconds |= dict(zip(TABLE.windows, (alone, crowd), strict=True))
    return Planner(TABLE, RoundCosts(seconds))


def test_drafts_are_verified_where_they_are_expected_to_pay() -> None:
    alone, crowd = TABLE.windows
    assert planner(1.5, 9.0).choose([SURE]) == alone
    assert planner(1.5, 9.0).choose([UNSURE]) is None
    assert planner(9.0, 9.0).choose([SURE]) is None
    assert planner(1.5, 9.0).choose([None]) is None
    assert planner(1.5, 1.6).choose([SURE, None]) == crowd
    assert planner(1.5, 2.0).choose([SURE, None, None, None]) is None
    assert planner(1.5, 2.0).choose([SURE] * 4) == crowd
    # More lanes than the window has: they decode.
    assert planner(0.1, 0.1).choose([SURE] * 5) is None


def test_costs_follow_what_rounds_take() -> None:
    shape, other = TABLE.windows
    costs = RoundCosts({shape: 1.0, other: 3.0})
    for _ in range(60):
        costs.saw(shape, 0.2)
    assert costs.of(shape) == pytest.approx(0.2, rel=0.01)
    # The other has not run: it became faster too, or drafts would be given up for good.
    assert 0.6 <= costs.of(other) < 0.8
    before = costs.of(other) / costs.of(shape)
    costs.saw(shape, 1000.0)
    assert costs.of(shape) < 0.3, "one stall is no cost"
    assert costs.of(other) / costs.of(shape) == pytest.approx(before, rel=0.03)
    costs.saw(StepShape(8, 128), 1.0)


def test_costs_learn_how_shapes_compare() -> None:
    shape, other = TABLE.windows
    costs = RoundCosts({shape: 1.0, other: 1.0})
    for _ in range(200):
        costs.saw(shape, 1.0)
        costs.saw(other, 2.0)
    assert costs.of(other) / costs.of(shape) == pytest.approx(2.0, rel=0.1)


def test_losers_are_parked_and_tried_again() -> None:
    record, now, waits = Record(), 0, []
    for _ in range(8):
        for _ in range(LOSSES):
            assert not record.parked(now)
            record.saw(7, 0, now)
            now += 1
        start = now
        while record.parked(now):
            now += 1
        waits.append(now - start + 1)
    assert waits[:3] == [PARK, 2 * PARK, 4 * PARK] and waits[-1] == LONGEST_PARK
    record.saw(7, 2, now)
    for _ in range(LOSSES):
        record.saw(7, 0, now)
    assert record.parked(now + PARK - 1) and not record.parked(now + PARK)


def test_a_rate_is_what_was_seen_and_fades_to_what_was_claimed() -> None:
    record = Record()
    assert record.rate(0.8, 0) == pytest.approx(0.8)
    for now in range(10):
        record.saw(7, 0, now)
    assert record.rate(0.8, 10) < 0.4
    assert record.rate(0.8, 2000) == pytest.approx(0.8, abs=0.01)
    for now in range(10, 20):
        record.saw(7, 7, now)
    assert record.rate(0.8, 20) > 0.9


class Scripted:
    """Always proposes the same tokens."""

    def __init__(self, name: str, tokens: tuple[int, ...], confidence: float) -> None:
        self.name = name
        self._found = Proposal(name, tokens, confidence)

    def absorb(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, limit: int, ahead: int) -> Proposal | None:
        return self._found


def test_the_proposer_that_promises_most_is_asked_until_it_loses() -> None:
    drafts = LaneDrafts((Scripted("bold", (1, 2, 3), 0.9), Scripted("meek", (4,), 0.9)))
    chosen = []
    for _ in range(LOSSES + 1):
        found = drafts.propose(7)
        assert found is not None
        chosen.append(found.source)
        drafts.judge(found.source, len(found.tokens), 0)
        drafts.absorb((0,))
    assert chosen[0] == "bold" and "meek" in chosen


def test_a_replay_proposes_what_was_sent() -> None:
    proposer = ReplayProposer([5, 6, 7, 8])
    found = proposer.propose(2, 0)
    assert found is not None and found.tokens == (5, 6)
    proposer.absorb((5,))
    found = proposer.propose(7, 1)
    assert found is not None and found.tokens == (7, 8)
    proposer.absorb((6, 7, 8))
    assert proposer.propose(7, 0) is None


def test_costs_are_measured_once_and_kept(programs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine("llama", programs_dir, self_check=False)
    try:
        device = engine.core.device
        file = tmp_path / "one.costs.json"
        first = measured(device, file)
        shapes = round_shapes(device.programs.table)
        assert all(0 < first.of(shape) < 60 for shape in shapes)
        assert str(first).count(" ms") == len(shapes)
        assert engine.snapshot().compiles_after_ready == 0
        with monkeypatch.context() as patch:
            patch.setattr(costs_module, "measure", lambda device: pytest.fail("they are measured again"))
            again = measured(device, file)
        assert [again.of(shape) for shape in shapes] == [first.of(shape) for shape in shapes]
        for damage in ("", "[]", "{}", json.dumps({str(shape): -1 for shape in shapes})):
            file.write_text(damage)
            assert all(measured(device, file).of(shape) > 0 for shape in shapes)
            assert json.loads(file.read_text())
        assert measured(device, tmp_path / "no-such-folder" / "x.json").of(shapes[0]) > 0
    finally:
        engine.close()
