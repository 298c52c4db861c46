"""Which pages and names are served: foreign ones are refused before anything runs, programs are never asked."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.api.access.origins import BrowserRules
from jaxfold.api.access.origins import host_name
from jaxfold.api.access.origins import is_loopback
from jaxfold.api.access.origins import is_origin
from jaxfold.api.http.errors import ApiError
from tests.api.harness import CHAT
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

PAGE = "http://localhost:3000"
FOREIGN = ["https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "null", "file://",
           "chrome-extension://abc", "http://192.168.0.7:8080", "", "http://", "localhost:3000"]  # fmt: skip
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("hi"))) as server:
        yield server


@pytest.fixture
def plain(plain_server: Server) -> Server:
    plain_server.engine.requests.clear()
    return plain_server


@pytest.mark.parametrize(
    "origin",
    [
        PAGE,
        "https://localhost",
        "http://127.0.0.1:5173",
        "http://127.9.8.7",
        "http://[::1]:8080",
        "http://app.localhost",
    ],
)
def test_pages_of_this_machine_are_served(plain: Server, origin: str) -> None:
    answer = plain.post(CHAT, chat_body(), {"Origin": origin})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
    assert "Origin" in answer.headers["vary"]
    stream = plain.post(CHAT, chat_body(stream=True), {"Origin": origin})
    assert (stream.status, stream.headers["access-control-allow-origin"]) == (200, origin)
    refused = plain.post(CHAT, {}, {"Origin": origin})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (400, origin)


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_others_are_refused(plain: Server, origin: str) -> None:
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/nope")):
        answer = plain.request(method, path, chat_body() if method == "POST" else None, {"Origin": origin})
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answer.headers
    assert plain.request("OPTIONS", CHAT, headers={"Origin": origin, **PREFLIGHT}).status == 403
    assert not plain.engine.requests


def test_the_refusal_has_the_format_of_its_path(plain: Server) -> None:
    headers = {"Origin": "https://evil.example"}
    assert plain.post("/v1/messages", {}, headers).json["error"]["type"] == "permission_error"
    assert set(plain.post("/api/chat", {}, headers).json) == {"error"}


def test_preflights(plain: Server) -> None:
    answer = plain.request("OPTIONS", CHAT, headers={"Origin": PAGE, **PREFLIGHT})
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "access-control-allow-private-network" not in answer.headers
    assert "access-control-allow-credentials" not in answer.headers


def test_preflights_from_a_public_page_to_a_private_address() -> None:
    private = {"Access-Control-Request-Private-Network": "true"}
    with running(ScriptedEngine(), browsers=BrowserRules(origins=("https://good.example",))) as server:
        allowed = server.request("OPTIONS", CHAT, headers={"Origin": "https://good.example", **PREFLIGHT, **private})
        assert (allowed.status, allowed.headers["access-control-allow-private-network"]) == (204, "true")
        refused = server.request("OPTIONS", CHAT, headers={"Origin": PAGE, **PREFLIGHT, **private})
        assert refused.status == 403 and "access-control-allow-private-network" not in refused.headers


def test_preflights_need_no_key() -> None:
    with running(ScriptedEngine(), keys=KeyRing(keys_of(["k"], "cli"))) as server:
        assert server.request("OPTIONS", CHAT, headers={"Origin": PAGE, **PREFLIGHT}).status == 204
        refused = server.post(CHAT, chat_body(), {"Origin": PAGE})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "x/json"]
)
def test_what_a_page_sends_must_be_said_to_be_json(plain: Server, kind: str) -> None:
    answer = plain.post(CHAT, chat_body(), {"Origin": PAGE, "Content-Type": kind})
    assert answer.status == 415
    assert not plain.engine.requests


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/problem+json"])
def test_json_types(plain: Server, kind: str) -> None:
    assert plain.post(CHAT, chat_body(), {"Origin": PAGE, "Content-Type": kind}).status == 200


def test_programs_may_leave_the_type_out(plain: Server) -> None:
    assert plain.post(CHAT, chat_body(), {"Content-Type": "text/plain"}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "127.0.0.1.x"]
)
def test_foreign_names_are_refused(plain: Server, host: str) -> None:
    for path in ("/v1/models", "/health", "/", "/nope"):
        answer = plain.request("GET", path, headers={"Host": host})
        assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert plain.post(CHAT, chat_body(), {"Host": host, "Origin": f"http://{host}"}).status == 403
    assert not plain.engine.requests


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.1.2.3:80", "[::1]:8080", "x.localhost.", ""]
)
def test_names_of_this_machine(plain: Server, host: str) -> None:
    assert plain.request("GET", "/v1/models", headers={"Host": host}).status == 200


def test_other_names_can_be_allowed() -> None:
    with running(ScriptedEngine(), browsers=BrowserRules(hosts=("proxy.example",))) as server:
        assert server.request("GET", "/health", headers={"Host": "Proxy.Example:443"}).status == 200
        assert server.request("GET", "/health", headers={"Host": "other.example"}).status == 403


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://192.168.1.5:8080", "192.168.1.5:8080", True),
        ("https://chat.example", "chat.example", True),
        ("https://chat.example:443", "chat.example", True),
        ("http://chat.example", "chat.example:80", True),
        ("http://chat.example", "chat.example:8080", False),
        ("http://other.example", "chat.example", False),
        ("ftp://chat.example", "chat.example", False),
        ("null", "null", False),
    ],
)
def test_a_page_of_the_server_itself(origin: str, host: str, allowed: bool) -> None:
    assert BrowserRules(hosts=None, origins=()).allows(origin, host) is allowed


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (("https://a.example",), "https://a.example", True),
        (("https://a.example",), "HTTPS://A.example:443", True),
        (("https://a.example",), "http://a.example", False),
        (("https://a.example",), "https://a.example.evil", False),
        (("https://a.example",), PAGE, False),
        (("https://a.example", "loopback"), PAGE, True),
        (("null",), "null", True),
        (("*",), "https://anything.example", True),
        (("app://obsidian.md",), "app://obsidian.md", True),
        ((), PAGE, False),
    ],
)
def test_allowed_origins(origins: tuple[str, ...], origin: str, allowed: bool) -> None:
    assert BrowserRules(origins=origins).allows(origin, "elsewhere") is allowed


@pytest.mark.parametrize(
    "text", ["*", "null", "loopback", "https://a.example", "http://[::1]:3000/", "app://obsidian.md"]
)
def test_what_is_an_origin(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text", ["", "a.example", "https://", "https://a/b", "https://u@a", "https://a?b", "https://a b", "https://a:99999"]
)
def test_what_is_no_origin(text: str) -> None:
    assert not is_origin(text)


@pytest.mark.parametrize(("name", "loopback"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("a.localhost", True),
    ("0.0.0.0", False), ("::", False), ("192.168.0.4", False), ("example.com", False), ("localhost.com", False),
])  # fmt: skip
def test_loopback(name: str, loopback: bool) -> None:
    assert is_loopback(name) is loopback


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_host_and_origin_get_an_answer(host: str, origin: str) -> None:
    assert isinstance(host_name(host), str) and isinstance(is_origin(origin), bool)
    try:
        BrowserRules().check(host, origin)
    except ApiError as error:
        assert error.status == 403 and error.message.isascii()
