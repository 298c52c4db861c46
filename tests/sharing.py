"""What the processes of one test run share, and which tests stay together in one of them."""

import os
import re
from pathlib import Path

import pytest

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this run, the same one in each of its processes."""
    base = factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process: those of the real model, those of a tiny family, else those of a file."""
    path, _, name = nodeid.partition("::")
    if path.endswith("/test_real_model.py"):
        return "real model"
    family = re.search(r"\[(" + "|".join(FAMILIES) + r")\b", name)
    if family is not None and path.startswith("tests/exactness/"):
        return f"family {family[1]}"
    return path


def weight_of(group: str) -> int:
    """Sort key: what takes longest begins first, so that no process waits for the other at the end."""
    return 0 if group == "real model" else 1 if group.startswith("family ") else 2
