"""`jaxfold doctor`: the machine, the model, what fits, and the self-check's table."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxfold.cli import doctor
from jaxfold.runtime.api import EngineInfo
from tests.cli.conftest import Loader
from tests.cli.conftest import Run
from tests.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def info() -> EngineInfo:
    engine = ScriptedEngine()
    engine.close()
    return engine.info


def verdict(level: str, **differing: int) -> SimpleNamespace:
    lines = [SimpleNamespace(form=form, against="alone", rows=10, differing=n) for form, n in differing.items()]
    return SimpleNamespace(level=level, comparisons=lines)


def test_without_a_model_it_describes_the_machine(run: Run, loader: Loader) -> None:
    outcome = run("doctor")
    assert outcome.code == 0 and not loader.options
    for word in ("python", "jaxlib", "cores", "GiB free", "cpu:0"):
        assert word in outcome.out


def test_with_a_model_it_shows_the_level_and_every_comparison(run: Run, loader: Loader, model_file: Path) -> None:
    loader.verdict = verdict("B", crowd=0, decode=3)
    outcome = run("doctor", model_file)
    assert outcome.code == 0, outcome.err
    assert "scripted" in outcome.out and "65536 tokens" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines() if "alone" in line]
    assert [row[-2] for row in rows] == ["none", "3"]
    assert "Level B: decoding agrees with itself" in outcome.out
    assert not loader.engines[0].snapshot().healthy


def test_a_skipped_self_check_is_said(run: Run, loader: Loader, model_file: Path) -> None:
    outcome = run("doctor", model_file, "--no-self-check")
    assert outcome.code == 0 and "No exactness self-check" in outcome.out
    assert loader.options[0].self_check is False


def test_the_number_of_devices_is_told(info: EngineInfo) -> None:
    assert dict(doctor.model_facts(info))["devices"] == "1"
    assert dict(doctor.model_facts(dataclasses.replace(info, tp=2)))["devices"] == "2, the model split between them"


def test_what_fits_shares_the_pages_out(info: EngineInfo) -> None:
    small = dataclasses.replace(info, context_length=4096, lanes=4, page_size=64, total_pages=100)
    # 6400 tokens: one lane is held by the window, the others by whole pages.
    assert doctor.what_fits(small) == [
        ("1 at a time", "4096 tokens each"),
        ("2 at a time", "3200 tokens each"),
        ("4 at a time", "1600 tokens each"),
        ("8 at a time", "768 tokens each"),
    ]
