"""`scripts/gpu_check.py` in small: every check runs, says what it found as JSON, and a failure is not hidden."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_check_runs_in_small(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    # The interpreted kernels have their own tests; here the XLA forms go through the same checks.
    run = script.Run(small=True, form="xla")
    for check in script.CHECKS:
        check(run)
    found = lines(capsys)
    assert run.failed == []
    for kind in ("result", "exactness"):
        assert all(line["ok"] for line in found if line["check"].endswith(kind))
    assert {line["check"] for line in found} >= {
        "versions", "ceiling copy", "ceiling matmul", "dense result", "attention result", "write result",
        "expert result", "dense exactness", "expert exactness", "dense speed", "attention speed", "write speed",
        "prefill", "decode", "decode exactness", "chunk exactness",
    }  # fmt: skip
    assert all(line["gb_s"] > 0 for line in found if line["check"].endswith("speed"))


def test_a_failed_check_is_told(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Any) -> None:
        raise RuntimeError("no such kernel")

    def wrong(run: Any) -> None:
        script.close(run, "wrong result", [1.0, 2.0], [1.0, 2.1], 1e-3)

    monkeypatch.setattr(script, "CHECKS", (broken, wrong))
    assert script.main(["--small"]) == 1
    first, second, summary = lines(capsys)
    assert first == {"check": "broken", "ok": False, "error": "RuntimeError: no such kernel"}
    assert second["ok"] is False
    assert second["tolerance"] == 1e-3
    assert summary["failed"] == ["broken", "wrong result"]


def test_without_a_gpu_it_says_so(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([]) == 2
    assert "there is no GPU that JAX can use here" in capsys.readouterr().err
