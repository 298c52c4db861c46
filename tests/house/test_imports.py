"""The arrows between the packages, as pyproject.toml writes them down."""

import os

import pytest
from importlinter import cli

from tests.house.sources import ROOT


def test_every_import_contract_holds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(os.fspath(ROOT))
    code = cli.lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert code == cli.EXIT_STATUS_SUCCESS, capsys.readouterr().out
