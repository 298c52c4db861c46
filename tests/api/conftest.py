"""One server for the tests that need nothing special; it must be as good after each test as before."""

from collections.abc import Iterator

import pytest

from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, w\u00f6rld \U0001f600\u2028!"


@pytest.fixture(scope="package")
def shared_server() -> Iterator[Server]:
    with running(ScriptedEngine(), aliases=("other",), max_body_mb=1) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    engine = shared_server.engine
    engine.script = reply_ids(REPLY)
    engine.fail_after = engine.refuse = None
    engine.cached_tokens = 0
    engine.requests.clear()
    engine.cancelled.clear()
    yield shared_server
    assert engine.wait_idle()
