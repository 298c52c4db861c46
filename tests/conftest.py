"""Strict settings for every test: silent promotion, silent broadcasting and warnings are failures."""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

from jaxfold.checkpoints.base import CheckpointError
from tests.sharing import group_of
from tests.sharing import shared_folder
from tests.sharing import weight_of

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)

# The machine is shared, so no example has a deadline; in CI the same examples run every time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


class Together(LoadScopeScheduling):
    """Gives each process whole groups of tests. (xdist's own groups do not reach pytest 9.2's ids.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes the heaviest groups come first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: weight_of(group_of(item.nodeid)))


def pytest_collection_finish() -> None:
    """What collecting has made stays: the collector of garbage need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def programs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled programs for the run, all its processes, so that engines of equal shape compile once."""
    return shared_folder(tmp_path_factory, "programs")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct (GGUF Q4_1): JAXFOLD_TEST_SMOLLM2 if set, else fetched once and kept."""
    return _real_model("smollm2:135m", "JAXFOLD_TEST_SMOLLM2")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The real all-MiniLM-L6-v2: JAXFOLD_TEST_MINILM if set, else fetched once and kept."""
    return _real_model("all-minilm:l6-v2", "JAXFOLD_TEST_MINILM")


def _real_model(name: str, variable: str) -> Path:
    """Without the model a test fails; it is skipped only where JAXFOLD_OFFLINE=1 says that nothing can be fetched."""
    given = os.environ.get(variable)
    if given:
        path = Path(given)
        if not path.exists():
            pytest.fail(f"{variable}={given} does not exist", pytrace=False)
        return path
    from jaxfold.checkpoints import catalogue

    try:
        return catalogue.resolve(name)
    except CheckpointError as error:
        if os.environ.get("JAXFOLD_OFFLINE") == "1":
            pytest.skip(f"JAXFOLD_OFFLINE=1 and {error}")
        pytest.fail(f"the real model cannot be had: {error} (JAXFOLD_OFFLINE=1 skips these tests)", pytrace=False)
