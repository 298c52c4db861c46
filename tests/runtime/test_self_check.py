"""The self-check: level A on what ships, B or C where products are made to differ, and what each level then reuses."""

import json
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxfold.runtime import self_check
from jaxfold.runtime.api import ExactnessLevel
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.device import Device
from jaxfold.runtime.engine import LocalEngine
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.self_check import Comparison
from jaxfold.runtime.self_check import SelfCheck
from jaxfold.runtime.self_check import Verdict
from jaxfold.runtime.table import StepShape
from tests.tiny_engines import LANES
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

Step = tuple[tuple[jax.Array, ...], Any]
PROMPT = tuple(int(i) for i in np.random.default_rng(8).integers(0, 256, 90))
SAMPLED = SamplingParams(temperature=1.0, seed=3)


def broken(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[StepShape], bool]) -> None:
    """From here on the steps of some shapes give hidden states (so logits) that are a little off."""
    right = Programs.step

    def step(self: Programs, shape: StepShape, *arguments: Any) -> Step:
        hidden, cache = right(self, shape, *arguments)
        return (tuple(rows * np.float32(1.01) for rows in hidden) if wrong(shape) else hidden), cache

    monkeypatch.setattr(Programs, "step", step)


def is_crowd(shape: StepShape) -> bool:
    return shape.decode > 1


def is_decode(shape: StepShape) -> bool:
    return shape.decode > 0


def is_window(shape: StepShape) -> bool:
    return shape.columns > 1


def is_small_chunk(shape: StepShape) -> bool:
    return shape.decode == 0 and shape.chunk == 32


@pytest.fixture(scope="module")
def engine(programs_dir: Path) -> Iterator[LocalEngine]:
    engine = tiny_engine("llama", programs_dir, self_check=False)
    yield engine
    engine.close()


@pytest.fixture
def device(engine: LocalEngine) -> Iterator[Device]:
    """Of an engine at rest; the check leaves its arrays undefined, so they are made afresh."""
    yield engine.core.device
    engine.core.device.rebuild()


def test_the_programs_that_ship_are_level_a(device: Device) -> None:
    verdict = SelfCheck(device).run()
    assert verdict.level == "A"
    assert {line.differing for line in verdict.comparisons} == {0}
    assert min(line.rows for line in verdict.comparisons) >= 1
    table = device.programs.table
    forms = [line.form for line in verdict.comparisons]
    assert len(set(forms)) == len(forms)
    for width in table.decode[1:]:
        assert f"decode among {width}" in forms
    for chunk in table.shared_chunks:
        assert f"decode beside a chunk of {chunk}" in forms
    assert {str(shape) for shape in table.windows} == {"verify 8 x 1", f"verify 4 x {LANES}"} <= set(forms)
    assert verdict.drafts


def test_what_is_compared_is_not_constant(device: Device) -> None:
    """Rows of different tokens differ, so equal rows say something."""
    check = SelfCheck(device)
    rows = check._prefill(40, 32)
    keys = {row[0].tobytes() for row in rows[:-1]}
    assert len(keys) == 40
    assert len(np.unique(rows[-1][0])) > device.cfg.vocab_size // 2


@pytest.mark.parametrize(
    ("wrong", "level", "form"),
    [
        (is_crowd, "C", f"decode among {LANES}"),
        (is_decode, "B", "decode's logits"),
        (is_small_chunk, "C", "prefill by 32"),
        (is_window, "A", "verify 8 x 1"),
    ],
)
def test_a_broken_form_is_found(
    wrong: Callable[[StepShape], bool],
    level: ExactnessLevel,
    form: str,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch, wrong)
    verdict = SelfCheck(device).run()
    assert verdict.level == level
    assert form in {line.form for line in verdict.comparisons if line.differing}
    # Windows are held against decoding: they may be wrong together.
    assert verdict.drafts == (wrong in (is_decode, is_small_chunk))


def test_a_level_follows_from_the_worst_comparison() -> None:
    lines = {level: Comparison("x", "y", 8, 1, level) for level in ("A", "B")}
    same = Comparison("x", "y", 8, 0, "B")
    assert Verdict((same,)).level == "A"
    assert Verdict((same, lines["A"])).level == "B"
    assert Verdict((lines["B"], same)).level == Verdict((lines["A"], lines["B"])).level == "C"


def levelled(programs_dir: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[StepShape], bool]) -> LocalEngine:
    """An engine whose programs stay broken. Its verdict must not be kept where others would read it."""
    broken(monkeypatch, wrong)
    monkeypatch.setattr(self_check, "run", lambda device, _: keeping_nothing(device))
    return tiny_engine("llama", programs_dir)


def keeping_nothing(device: Device) -> Verdict:
    verdict = SelfCheck(device).run()
    device.rebuild()
    return verdict


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SAMPLED], ids=["greedy", "sampled"])
def test_at_level_b_prompts_are_reused_and_replies_are_not(
    sampling: SamplingParams, programs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = levelled(programs_dir, monkeypatch, is_decode)
    try:
        client = Client(engine)
        assert engine.info.exactness == "B"
        ask = Ask(PROMPT, 30, sampling)
        alone = client.run(ask)
        assert alone.stats().cached_tokens == 0
        again = client.run(ask)
        assert again.stats().cached_tokens == 80 and again.ids == alone.ids
        # A follow-up turn finds the pages of its first prompt only: those of the reply came from decoding.
        turn = Ask((*PROMPT, *alone.ids, *PROMPT[:20]), 12, sampling)
        salted = Ask(turn.prompt, 12, sampling, salt="fresh")
        cold = client.run(salted)
        assert cold.stats().cached_tokens == 0
        follow = client.run(turn)
        assert follow.stats().cached_tokens == 80 and follow.ids == cold.ids
        others = [Ask(PROMPT[i:], 30, SamplingParams(temperature=1.0, seed=i)) for i in (3, 7)]
        assert client.together([ask, *others])[0].ids == alone.ids
    finally:
        engine.close()


def test_at_level_c_nothing_is_reused(
    programs_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = levelled(programs_dir, monkeypatch, is_crowd)
    try:
        assert engine.info.exactness == "C"
        assert any("level C" in record.getMessage() for record in caplog.records)
        client = Client(engine)
        first, second = (client.run(Ask(PROMPT, 20, SAMPLED)) for _ in range(2))
        assert first.stats().cached_tokens == second.stats().cached_tokens == 0
        assert first.ids == second.ids
        assert engine.snapshot().pages_cached == 0
    finally:
        engine.close()


def test_nothing_is_drafted_where_verified_rows_differ(
    programs_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = levelled(programs_dir, monkeypatch, is_window)
    try:
        assert engine.info.exactness == "A" and not engine.info.drafting
        assert any("drafting is off" in record.getMessage() for record in caplog.records)
        reply = Client(engine).run(Ask(PROMPT[:12] * 4, 40))
        assert reply.stats().drafted == 0 and engine.snapshot().drafted_total == 0
    finally:
        engine.close()


def test_without_the_check_an_engine_trusts_its_programs(engine: LocalEngine) -> None:
    assert engine.info.exactness == "A"


class Counted:
    """Stands for the check itself, which takes seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, differing: int) -> None:
        self.runs = 0
        lines = (
            Comparison("decode among 3", "decode alone", 8, 0, "B"),
            Comparison("decode", "prefill", 8, differing, "A"),
        )
        self.verdict = Verdict(lines)
        monkeypatch.setattr(SelfCheck, "run", self.run)

    def run(self) -> Verdict:
        self.runs += 1
        return self.verdict


@pytest.mark.parametrize("differing", [0, 3])
def test_a_verdict_is_kept_and_read_back(
    differing: int, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch, differing)
    file = tmp_path / "one.verdict.json"
    assert self_check.run(device, file) == counted.verdict
    assert self_check.run(device, file) == counted.verdict
    assert counted.runs == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert self_check.run(device, None) == counted.verdict and counted.runs == 2


LINE = {"form": "x", "against": "y", "rows": 8, "differing": 0, "decides": "A"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"comparisons": []}',
        json.dumps({"comparisons": [LINE]}),
        json.dumps({"comparisons": [LINE, LINE | {"decides": "Z"}]}),
        json.dumps({"comparisons": [LINE | {"differing": None}, LINE | {"decides": "B"}]}),
        json.dumps({"comparisons": [LINE | {"differing": -1}, LINE | {"decides": "B"}]}),
        json.dumps({"comparisons": [LINE | {"differing": False}, LINE | {"decides": "B"}]}),
        json.dumps({"comparisons": [LINE | {"more": 1}, LINE | {"decides": "B"}]}),
        json.dumps({"comparisons": [1, 2]}),
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_a_damaged_verdict_is_made_again(
    content: str, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch, 3)
    file = tmp_path / "one.verdict.json"
    file.write_text(content, encoding="latin-1")
    assert self_check.run(device, file).level == "B" and counted.runs == 1
    assert self_check.run(device, file).level == "B" and counted.runs == 1


def test_a_verdict_that_cannot_be_kept_still_counts(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch, 0)
    assert self_check.run(device, tmp_path / "no-such-folder" / "one.verdict.json") == counted.verdict
