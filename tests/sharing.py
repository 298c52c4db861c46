"""What the processes of one test run share, and which tests stay together in one of them."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this run, the same one in each of its processes."""
    base = factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def group_of(item: pytest.Item) -> str:
    """Tests of one group run in one process: those of the real model, those of a tiny family, else those of a file."""
    if item.get_closest_marker("real_model") is not None:
        return "real model"
    path = item.path.relative_to(ROOT).as_posix()
    family = getattr(item, "callspec", None) and item.callspec.params.get("family")  # type: ignore[attr-defined]
    if family is not None and path.startswith("tests/exactness/"):
        return f"family {family}"
    return path


def weight_of(group: str) -> int:
    """Sort key: what takes longest begins first, so that no process waits for the other at the end."""
    return 0 if group == "real model" else 1 if group.startswith("family ") else 2
