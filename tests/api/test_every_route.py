"""What holds for every route, whatever its protocol: keys, foreign names, wrong methods, full queues, draining.

The routes come from the application's own URL map, so a new one is tested from the day it is there.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.api.app import create_app
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.formats import ANTHROPIC
from jaxfold.api.http.formats import OLLAMA
from jaxfold.api.http.formats import OPENAI
from jaxfold.api.http.formats import ErrorFormat
from jaxfold.api.http.formats import format_of
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import ModelFile
from jaxfold.chat.types import ContextLengthError
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from tests.api.harness import CHAT
from tests.api.harness import MODEL
from tests.api.harness import Answer
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

OPEN = {("GET", "/"), ("GET", "/health"), ("GET", "/v1/health"), ("GET", "/health/live"), ("GET", "/health/ready")}
MESSAGES = [{"role": "user", "content": "hi"}]
GENERATING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
    "/api/chat": {"model": MODEL, "messages": MESSAGES},
    "/api/chat/ollama": {"model": MODEL, "messages": MESSAGES},
    "/api/generate": {"model": MODEL, "prompt": "hi"},
    "/v1/decisions": {
        "input": "hi",
        "questions": [{"id": "q", "type": "score", "question": "?", "levels": ["a", "b"]}],
    },
}
# These give no stream, and refuse the word.
WHOLE = ("/v1/decisions",)
FULL = {OPENAI.name: 429, ANTHROPIC.name: 529, OLLAMA.name: 503}


def routes() -> list[tuple[str, str]]:
    """Method and a path of every rule, with something in place of its variables."""
    found = set()
    for rule in create_app(None, ApiSettings(model=MODEL)).url_map.iter_rules():
        path = re.sub(r"<[^>]*>", "x", rule.rule)
        found |= {(method, path) for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
    return sorted(found)


def check_error(answer: Answer, path: str, status: int) -> str:
    """The error's message, after a check of its format."""
    assert answer.status == status, (path, answer.status, answer.body)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    match format_of(path).name:
        case "openai":
            assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
            message = body["error"]["message"]
        case "anthropic":
            assert set(body) >= {"type", "error"} and body["type"] == "error" and body["error"]["type"]
            message = body["error"]["message"]
        case _:
            assert set(body) == {"error"}
            message = body["error"]
    assert isinstance(message, str) and message and "\n" not in message
    return message


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("hello"))) as server:
        yield server


def test_every_route_needs_a_key_but_the_few_that_are_open() -> None:
    with running(ScriptedEngine(), keys=KeyRing(keys_of(["k"], "cli"))) as server:
        for method, path in routes():
            for headers in ({}, {"x-api-key": "wrong"}):
                answer = server.request(method, path, {} if method == "POST" else None, headers)
                if (method, path) in OPEN:
                    assert answer.status == 200
                else:
                    check_error(answer, path, 401)
                    assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/nope", "/v1/nope", "/api/nope", "/v1/messages/nope"):
            check_error(server.get(path), path, 401)
        assert not server.engine.requests


def test_every_route_refuses_foreign_names_and_pages(plain: Server) -> None:
    for method, path in routes():
        body = {} if method == "POST" else None
        check_error(plain.request(method, path, body, {"Host": "evil.example"}), path, 403)
        check_error(plain.request(method, path, body, {"Origin": "https://evil.example"}), path, 403)


def test_every_route_names_its_methods(plain: Server) -> None:
    taken: dict[str, set[str]] = {}
    for method, path in routes():
        taken.setdefault(path, set()).add(method)
    for path, methods in taken.items():
        answer = plain.request("PATCH", path, b"{}")
        assert path in check_error(answer, path, 405)
        assert methods <= {method.strip() for method in answer.headers["allow"].split(",")}


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "/v1", "/api/nope", "/v1/messages/x/y", "/index.html"])
def test_unknown_paths_are_404_in_the_format_of_their_prefix(plain: Server, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        check_error(plain.request(method, path, {} if method == "POST" else None), path, 404)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_told_before_headers(plain: Server, path: str, stream: bool) -> None:
    body = GENERATING[path] | ({} if path in WHOLE else {"stream": stream})
    plain.engine.refuse = QueueFullError("256 requests are waiting already", retry_after=3)
    try:
        answer = plain.post(path, body)
        message = check_error(answer, path, FULL[format_of(path).name])
        assert answer.headers["retry-after"] == "3"
        assert "waiting" in message
        if path == "/v1/messages":
            assert answer.json["error"]["type"] == "overloaded_error"
    finally:
        plain.engine.refuse = None
    assert plain.post(path, body).status == 200


@pytest.mark.parametrize("path", GENERATING)
def test_an_engine_that_is_not_ready(plain: Server, path: str) -> None:
    plain.engine.refuse = NotReadyError("the engine is not ready", retry_after=7)
    try:
        answer = plain.post(path, GENERATING[path])
        check_error(answer, path, 503)
        assert answer.headers["retry-after"] == "7"
    finally:
        plain.engine.refuse = None


@pytest.mark.parametrize("path", GENERATING)
def test_while_loading_and_while_draining(path: str) -> None:
    with running(ScriptedEngine(reply_ids("x"))) as server:
        service, server.state.service = server.state.service, None
        loading = server.post(path, GENERATING[path])
        server.state.service = service
        server.state.draining = True
        draining = server.post(path, GENERATING[path])
        server.state.draining = False
    for answer in (loading, draining):
        check_error(answer, path, 503)
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", GENERATING)
def test_bodies_that_no_route_takes(path: str) -> None:
    with running(ScriptedEngine(reply_ids("x")), max_body_mb=0.01) as server:
        large = server.post(path, {**GENERATING[path], "pad": "x" * 20_000})
        check_error(large, path, 413)
        check_error(server.request("POST", path, b"{}", {"Content-Encoding": "gzip"}), path, 415)
        page = {"Origin": "http://localhost:3000", "Content-Type": "text/plain"}
        check_error(server.request("POST", path, b"{}", page), path, 415)
        for body in (b"", b"{", b"[]", b"[" * 5000, b'{"a":NaN}', b"\xff"):
            check_error(server.request("POST", path, body, {"Content-Type": "application/json"}), path, 400)
        assert server.post(path, GENERATING[path]).status == 200


@pytest.mark.parametrize("path", GENERATING)
def test_a_prompt_that_does_not_fit(path: str) -> None:
    """The words that clients look for before they shorten a conversation."""
    with running(ScriptedEngine(reply_ids("x"), context_length=256)) as server:
        long = "word " * 200
        body = dict(GENERATING[path])
        for field in ("prompt", "input"):
            body |= {field: long} if field in body else {}
        if "messages" in body:
            body["messages"] = [{"role": "user", "content": long}]
        message = check_error(server.post(path, body), path, 400)
        if format_of(path) is ANTHROPIC:
            assert re.match(r"prompt is too long: \d+ tokens > 256 maximum", message)
        else:
            assert message.startswith("This server's maximum context length is 256 tokens")
            assert "This model's maximum context length is 256 tokens" in message
        if format_of(path) is OPENAI:
            assert server.post(path, body).json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", GENERATING)
def test_one_rule_for_names_on_every_route(path: str, tmp_path: Path) -> None:
    """With --strict-model (and always under /api) these names are served, and no others."""
    file = ModelFile(
        path=tmp_path / "Tiny.Q4_1.gguf", size=1, modified=0.0, format="gguf", quantisation="", parameters=1
    )
    served = [MODEL, MODEL.upper(), f"{MODEL}:latest", "Other", "Tiny.Q4_1.gguf", "tiny.q4_1", str(file.path)]
    with running(ScriptedEngine(reply_ids("x")), strict_model=True, aliases=("other",), model_file=file) as server:
        for name in served:
            answer = server.post(
                path, GENERATING[path] | {"model": name} | ({} if path in WHOLE else {"stream": False})
            )
            assert answer.status == 200, (name, answer.body)
            assert answer.json["model"] == name
        for name in ("nope", f"{MODEL}:7b", "Tiny", f"{MODEL} "):
            message = check_error(server.post(path, GENERATING[path] | {"model": name}), path, 404)
            assert name in message


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("/v1/chat/completions", OPENAI),
        ("/api", OLLAMA),
        ("/api/chat", OLLAMA),
        ("/apix", OPENAI),
        ("/v1/api/chat", OPENAI),
        ("/messages", ANTHROPIC),
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/anthropic/v1/messages", ANTHROPIC),
        ("/v1/messagesx", OPENAI),
        ("/nope", OPENAI),
    ],
)
def test_the_format_of_a_path(path: str, style: ErrorFormat) -> None:
    assert format_of(path) is style
    assert format_of(path, anthropic=True) is style


@pytest.mark.parametrize("path", ["/models", "/v1/models", "/v1/models/x", "/anthropic/v1/models/x"])
def test_the_format_of_the_models_is_the_clients(path: str) -> None:
    assert (format_of(path), format_of(path, anthropic=True)) == (OPENAI, ANTHROPIC)
    assert format_of(f"/api{path}", anthropic=True) is OLLAMA


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (405, "invalid_request_error"), (408, "timeout_error"), (413, "request_too_large"),
        (415, "invalid_request_error"), (500, "api_error"), (503, "overloaded_error"),
    ],
)  # fmt: skip
def test_anthropic_types(status: int, kind: str) -> None:
    body = ANTHROPIC.body(ANTHROPIC.translate(ApiError(status, "words")))
    assert body == {"type": "error", "error": {"type": kind, "message": "words"}}


def test_a_translation_keeps_what_it_does_not_change() -> None:
    error = ANTHROPIC.translate(QueueFullError("full", 9))
    assert (error.status, error.headers) == (529, {"Retry-After": "9"})
    long = ContextLengthError("ours", "messages", 100, 90, 20)
    assert ANTHROPIC.translate(long).message == "prompt is too long: 110 tokens > 100 maximum"
    assert OPENAI.translate(long).message == "ours"


def test_ordinary_requests_go_on_after_all_that(plain: Server) -> None:
    assert plain.post(CHAT, chat_body()).status == 200
