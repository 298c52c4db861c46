"""What the tests of the real model share, so that its programs are compiled once in a session."""

from pathlib import Path

import pytest

LANES = 4
CONTEXT = 1024


def smollm2_cache(factory: pytest.TempPathFactory) -> Path:
    """The session's folder of compiled programs and ready weights: what `--cache-dir` takes."""
    path = factory.getbasetemp() / "smollm2"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
