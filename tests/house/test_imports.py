"""The arrows between the packages, as pyproject.toml writes them down."""

import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT


def test_every_import_contract_holds() -> None:
    # In a process of its own: the tool prints through streams that pytest replaces while it captures.
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
