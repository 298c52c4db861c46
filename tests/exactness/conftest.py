"""Each tiny family as it is served, and the plainest engine that it must equal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_engines import FAMILIES
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def client(family: str, programs_dir: Path) -> Iterator[Client]:
    """The family's engine as it is served: overlapped, with prefix reuse."""
    engine = tiny_engine(family, programs_dir)
    yield Client(engine)
    engine.close()


@pytest.fixture(scope="session")
def fresh(family: str, programs_dir: Path) -> Iterator[Client]:
    """The same without drafts or prefix reuse, on the plain loop: what every other way of serving must equal."""
    engine = tiny_engine(family, programs_dir, overlap=False, prefix_cache=False, draft=False)
    yield Client(engine)
    engine.close()
