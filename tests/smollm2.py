"""What the tests of the real model share, so that its programs are compiled once in a run."""

from pathlib import Path

import pytest

from tests.sharing import shared_folder

LANES = 4
CONTEXT = 1024


def smollm2_cache(factory: pytest.TempPathFactory) -> Path:
    """The run's folder of compiled programs and ready weights: what `--cache-dir` takes."""
    return shared_folder(factory, "smollm2")
