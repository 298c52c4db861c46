"""`jaxfold run`, `pull` and `convert`: what goes in, what comes out on which stream."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxfold.checkpoints.base import CheckpointError
from tests.cli.conftest import Loader
from tests.cli.conftest import Run


def test_the_reply_is_on_stdout_and_the_rest_on_stderr(run: Run, loader: Loader, model_file: Path) -> None:
    loader.reply = "Grüße 👋"
    outcome = run("run", model_file, "hi", "--seed", 7, "--system", "Be kind.", "--temperature", 0, "--max-tokens", 50)
    assert outcome.code == 0 and outcome.out == "Grüße 👋\n"
    request = loader.engines[0].requests[0]
    assert (request.sampling.seed, request.sampling.temperature, request.max_tokens) == (7, 0.0, 50)
    prompt = bytes(i for i in request.prompt_ids if i < 256).decode()
    assert "Be kind." in prompt and prompt.index("Be kind.") < prompt.index("hi")
    assert "reply 12 tokens" in outcome.err and "seed 7" in outcome.err and "token_sha" in outcome.err
    assert not loader.engines[0].snapshot().healthy


def test_raw_text_is_continued_as_it_is(run: Run, loader: Loader, model_file: Path) -> None:
    outcome = run("run", model_file, "Once upon", "--raw", "--no-stats", "--stop", "lo")
    assert outcome.code == 0 and outcome.out == "hel\n" and "token_sha" not in outcome.err
    assert loader.engines[0].requests[0].prompt_ids == tuple(b"Once upon")


def test_a_dash_reads_the_prompt_from_stdin(
    run: Run, loader: Loader, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert run("run", model_file, "-", "--raw").code == 0
    assert loader.engines[0].requests[0].prompt_ids == tuple(b"from a pipe")


def test_bytes_that_are_no_text_are_a_sentence(
    run: Run, loader: Loader, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"))
    outcome = run("run", model_file, "-")
    assert outcome.code == 2 and "not UTF-8" in outcome.err and not loader.options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["   "], "the prompt is empty"),
        (["hi", "--raw", "--system", "x"], "--system needs the chat template"),
        (["hi", "--seed", str(1 << 64)], "Invalid value for '--seed'"),
        (["hi", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
    ],
)
def test_bad_requests_are_refused_before_the_model_loads(
    run: Run, loader: Loader, model_file: Path, arguments: list[str], words: str
) -> None:
    outcome = run("run", model_file, *arguments)
    assert outcome.code == 2 and words in outcome.err and not loader.options


def test_a_prompt_that_does_not_fit_is_a_sentence(run: Run, loader: Loader, model_file: Path) -> None:
    outcome = run("run", model_file, "x" * (1 << 16), "--raw")
    assert outcome.code == 2 and "maximum context length is 65536" in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err and not outcome.out


def test_an_engine_that_fails_is_a_sentence(run: Run, loader: Loader, model_file: Path) -> None:
    loader.fail_after = 2
    outcome = run("run", model_file, "hi")
    assert outcome.code == 2 and outcome.err.splitlines()[-1].startswith("jaxfold: ")
    assert "Traceback" not in outcome.err and outcome.out == "he"


def test_an_unknown_model_is_a_sentence(run: Run, loader: Loader) -> None:
    outcome = run("run", "no-such-model", "hi")
    assert outcome.code == 2 and "no-such-model" in outcome.err.splitlines()[-1] and not loader.options


def test_an_empty_model_is_a_sentence(run: Run, loader: Loader) -> None:
    outcome = run("run", " ", "hi")
    assert outcome.code == 2 and "MODEL is empty" in outcome.err


def test_pull_prints_the_path_alone_on_stdout(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def resolve(name: str, *, progress: Callable[[str], None]) -> Path:
        progress(f"{name}: downloading")
        return tmp_path / "model.gguf"

    monkeypatch.setattr("jaxfold.checkpoints.catalogue.resolve", resolve)
    outcome = run("pull", "smollm2:135m")
    assert outcome.code == 0 and outcome.out == f"{tmp_path / 'model.gguf'}\n"
    (line,) = outcome.err.splitlines()
    assert line.startswith("smollm2:135m: downloading ... ") and line.endswith(" s")


def test_pull_that_fails_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *, progress: Callable[[str], None]) -> Path:
        progress("downloading")
        raise CheckpointError(name, "cannot be downloaded")

    monkeypatch.setattr("jaxfold.checkpoints.catalogue.resolve", resolve)
    outcome = run("pull", "smollm2:135m")
    assert outcome.code == 2 and not outcome.out
    assert outcome.err.splitlines()[-2:] == ["downloading ... failed", "jaxfold: smollm2:135m: cannot be downloaded"]


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def convert(source: Path, destination: Path, *, shards: int | None, dtype: str, progress: object) -> None:
        calls.append((source, destination, shards, dtype))

    module = ModuleType("jaxfold.runtime.convert")
    module.convert = convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxfold.runtime.convert", module)
    return calls


def test_convert_passes_its_arguments_on(
    run: Run, converter: list[tuple[Any, ...]], model_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "fast"
    outcome = run("convert", model_file, target, "--shards", 2, "--dtype", "bf16")
    assert outcome.code == 0 and outcome.out == f"{target}\n"
    assert converter == [(model_file, target, 2, "bf16")]


def test_convert_overwrites_nothing(
    run: Run, converter: list[tuple[Any, ...]], model_file: Path, tmp_path: Path
) -> None:
    outcome = run("convert", model_file, model_file)
    assert outcome.code == 2 and "already there" in outcome.err
    outcome = run("convert", model_file, tmp_path)
    assert outcome.code == 2 and "already there" in outcome.err
    assert not converter
