"""Refusals by the engine, failures before and after the first event, unknown paths and wrong methods."""

import pytest

from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import COMPLETIONS
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.sse import events
from tests.scripted_engine import ScriptedEngine

BOTH = pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, {"prompt": "a"}), (COMPLETIONS, {"prompt": ["a", "b", "c"]})]
)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@BOTH
@STREAMED
def test_full_queue(server: Server, path: str, body: dict[str, object], stream: bool) -> None:
    server.engine.refuse = QueueFullError("256 requests are waiting already", retry_after=3)
    answer = server.post(path, {**body, "stream": stream})
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.error["type"] == "rate_limit_error"
    assert answer.error["code"] == "rate_limit_exceeded"


@BOTH
@STREAMED
def test_engine_that_is_not_ready(server: Server, path: str, body: dict[str, object], stream: bool) -> None:
    server.engine.refuse = NotReadyError("the engine is loading", retry_after=7)
    answer = server.post(path, {**body, "stream": stream})
    assert answer.status == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.error["type"] == "server_error"


@BOTH
@pytest.mark.parametrize("after", [0, 3])
def test_failure_before_the_answer_has_begun(server: Server, path: str, body: dict[str, object], after: int) -> None:
    server.engine.fail_after = after
    answer = server.post(path, body)
    assert answer.status == 500
    assert answer.error["type"] == "server_error"
    assert "script" not in answer.error["message"]
    server.engine.fail_after = None
    server.works()


@BOTH
@pytest.mark.parametrize("after", [0, 3])
def test_failure_in_the_stream(server: Server, path: str, body: dict[str, object], after: int) -> None:
    server.engine.fail_after = after
    *before, last = events(server, path, body)
    assert set(last) == {"error"}
    assert last["error"]["type"] == "server_error"
    assert "\n" not in last["error"]["message"] and "Error" not in last["error"]["message"]
    assert all("error" not in chunk for chunk in before)
    assert not any(choice["finish_reason"] for chunk in before for choice in chunk["choices"])
    server.engine.fail_after = None
    server.works()


def test_one_failing_prompt_ends_the_others() -> None:
    def script(request: object) -> list[int]:
        return reply_ids("ok")

    engine = ScriptedEngine(script, lanes=2)
    with running(engine) as server:
        engine.fail_after = 2
        assert server.post(COMPLETIONS, {"prompt": ["a"] * 20}).status == 500
        assert engine.wait_idle()
        assert len(engine.requests) == 20


def test_a_call_whose_prompts_are_refused_half_way_leaves_nothing_behind() -> None:
    def script(request: object) -> list[int]:
        if len(engine.requests) == 3:
            engine.refuse = NotReadyError("The engine has stopped.")
        return reply_ids(REPLY)

    engine = ScriptedEngine(script, lanes=1, delay_s=0.01)
    with running(engine) as server:
        assert server.post(COMPLETIONS, {"prompt": ["a"] * 20}).status == 503
        assert engine.wait_idle()
        assert len(engine.cancelled) == 4
        engine.refuse, engine.script, engine.delay_s = None, reply_ids(REPLY), 0.0
        server.works()


@STREAMED
def test_a_bug_tells_nothing_of_our_insides(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    def script(request: object) -> list[int]:
        raise RuntimeError("secret detail in /usr/lib/python.py")

    with running(ScriptedEngine(script)) as server:
        answer = server.post(CHAT, chat_body(stream=stream))
        assert answer.status == 500
        assert answer.error["type"] == "server_error"
        assert "secret" not in answer.error["message"]
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/embedding", "/v1/chat", "/xcompletions", "/%00"])
def test_unknown_paths(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        answer = server.request(method, path, b"{}" if method == "POST" else None)
        assert answer.status == 404
        assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, {"POST"}),
        ("PUT", COMPLETIONS, {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
        ("POST", "/", {"GET", "HEAD"}),
    ],
)
def test_wrong_methods(server: Server, method: str, path: str, allowed: set[str]) -> None:
    answer = server.request(method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allowed | {"OPTIONS"}
    assert answer.error["code"] == "method_not_allowed"


def test_strict_model_names() -> None:
    with running(ScriptedEngine(reply_ids("ok")), strict_model=True, aliases=("alias",)) as server:
        for name in ("no-such-model", "\u00e9\n", "x" * 5000):
            answer = server.post(CHAT, chat_body(model=name))
            assert answer.status == 404
            assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
        assert "no-such-model" in server.post(CHAT, chat_body(model="no-such-model")).error["message"]
        assert server.post(COMPLETIONS, {"prompt": "x", "model": "nope"}).status == 404
        for good in ("scripted", "alias", None):
            assert server.post(CHAT, chat_body(model=good)).status == 200
