"""API keys over HTTP and in files: who gets in, what a refusal looks like, and how a file is replaced."""

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxfold.api.access.keys
from jaxfold.api.access.keys import MAX_KEYS
from jaxfold.api.access.keys import Key
from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import KeySourceError
from jaxfold.api.access.keys import keys_of
from jaxfold.api.access.keys import parse_keys
from jaxfold.api.access.keys import presented
from tests.api.harness import CHAT
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.rawsocket import Raw
from tests.api.rawsocket import head
from tests.scripted_engine import ScriptedEngine

KEY = "sk-first-0123456789"
BEARER = {"Authorization": f"Bearer {KEY}"}
GATED = [
    ("POST", CHAT), ("POST", "/chat/completions"), ("POST", "/openai/v1/chat/completions"), ("POST", "/v1/completions"),
    ("GET", "/v1/models"), ("GET", "/models"), ("GET", "/v1/models/scripted"), ("GET", "/metrics"),
    ("GET", "/v1/metrics"), ("POST", "/tokenize"), ("POST", "/v1/detokenize"), ("GET", "/tokenizer_info"),
    ("POST", "/v1/embeddings"), ("POST", "/v1/messages"), ("POST", "/v1/responses"), ("POST", "/v1/decisions"),
    ("POST", "/api/chat"), ("GET", "/api/tags"), ("DELETE", "/api/delete"), ("GET", "/openapi.json"), ("GET", "/docs"),
    ("POST", "/invocations"), ("GET", "/uploads/x"), ("GET", "/no/such/path"), ("PUT", "/v1"), ("POST", "/"),
]  # fmt: skip


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("hi")), keys=KeyRing(keys_of([KEY, "second"], "cli"))) as server:
        yield server


@pytest.fixture
def locked(locked_server: Server) -> Server:
    locked_server.engine.requests.clear()
    return locked_server


@pytest.mark.parametrize(("method", "path"), GATED)
def test_without_a_key_nothing_but_the_open_routes_answers(locked: Server, method: str, path: str) -> None:
    answer = locked.request(method, path, {} if method == "POST" else None)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.headers["connection"] == "close"
    assert not locked.engine.requests


def test_a_refusal_is_in_the_format_of_its_path(locked: Server) -> None:
    error = locked.post(CHAT, {}).error
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    answer = locked.post("/v1/messages", {}).json
    assert (answer["type"], answer["error"]["type"]) == ("error", "authentication_error")
    assert answer["error"]["message"] == error["message"]
    assert locked.post("/api/chat", {}).json == {"error": error["message"]}


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer   {KEY}  "},
        {"AUTHORIZATION": f"BEARER {KEY}"},
        {"x-api-key": KEY},
        {"X-Api-Key": "second"},
        {"Authorization": "Bearer wrong", "x-api-key": KEY},
        {"Authorization": "Bearer ", "x-api-key": KEY},
    ],
)
def test_keys_that_open(locked: Server, headers: dict[str, str]) -> None:
    assert locked.request("POST", CHAT, chat_body(), headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Token {KEY}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY.upper()}"},
        {"Authorization": f"Bearer {KEY}, Bearer {KEY}"},
        {"Authorization": "Bearer " + hashlib.sha256(KEY.encode()).hexdigest()},
        {"x-api-key": f"Bearer {KEY}"},
        {"x-api-key": ""},
        {"api-key": KEY},
        {"Cookie": f"key={KEY}"},
        {"Authorization": "Bearer \u00e9"},
    ],
)
def test_keys_that_do_not_open(locked: Server, headers: dict[str, str]) -> None:
    for path in (CHAT, "/metrics", "/tokenize", "/api/chat", "/invocations"):
        assert locked.request("POST", path, chat_body(), headers).status == 401
    assert not locked.engine.requests


def test_a_header_that_comes_twice_is_none(locked: Server) -> None:
    with Raw(locked) as raw:
        raw.send(head("/v1/models", f"x-api-key: {KEY}", "x-api-key: second", method="GET"))
        assert raw.read_all().startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("name", ["key", "api_key", "api-key", "apikey", "access_token"])
def test_a_key_in_the_address_is_refused_with_the_way_out(locked: Server, name: str) -> None:
    answer = locked.post(f"{CHAT}?x=1&{name}={KEY}", chat_body())
    assert answer.status == 401
    assert "URL" in answer.error["message"] and "Bearer" in answer.error["message"]
    assert KEY not in answer.body.decode()


def test_a_refused_body_does_not_disturb_the_server(locked: Server) -> None:
    with Raw(locked) as raw:
        raw.send(head(CHAT, f"Content-Length: {1 << 20}") + b"x" * 100_000)
        assert raw.read_all().startswith(b"HTTP/1.1 401 ")
    assert locked.request("POST", CHAT, chat_body(), BEARER).status == 200


def test_a_body_that_waits_to_be_asked_for_is_not_read_without_a_key(locked: Server) -> None:
    """The library invites the body before anything of ours runs; the refusal does not wait for it."""
    with Raw(locked) as raw:
        raw.send(head(CHAT, "Content-Length: 1000000", "Expect: 100-continue", "Authorization: Bearer nope"))
        assert b"HTTP/1.1 401" in raw.read_all()
    assert locked.request("POST", CHAT, chat_body(), BEARER).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/", "/health/"])
def test_health_says_less_without_a_key(locked: Server, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = locked.request("GET", path, headers=headers)
        assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert locked.request("HEAD", path).status == 200
    full = locked.request("GET", path, headers=BEARER).json
    assert full["ready"] is True and full["streams"]


def test_probes_need_no_key(locked: Server) -> None:
    assert locked.get("/health/live").status == locked.get("/health/ready").status == 200


def test_metrics_may_be_open() -> None:
    with running(ScriptedEngine(), keys=KeyRing(keys_of([KEY], "cli")), metrics_open=True) as server:
        assert server.get("/metrics").status == server.get("/v1/metrics").status == 200
        assert server.get("/v1/models").status == 401


def test_pages_are_open_and_only_for_reading() -> None:
    with running(ScriptedEngine(), keys=KeyRing(keys_of([KEY], "cli"))) as server:
        server.state.add_page("/assets/")
        server.state.add_page("/favicon.ico")
        statuses = [server.get(path).status for path in ("/assets/app.js", "/favicon.ico", "/assetsx", "/assets")]
        assert statuses == [404, 404, 401, 401]
        assert server.post("/assets/app.js", {}).status == 401


def test_without_keys_any_key_will_do() -> None:
    with running(ScriptedEngine(reply_ids("hi"))) as server:
        for headers in ({}, {"Authorization": "Bearer "}, {"x-api-key": "anything"}):
            assert server.request("POST", CHAT, chat_body(), headers).status == 200
            assert "streams" in server.request("GET", "/health", headers=headers).json


def test_keys_over_http2(locked: Server) -> None:
    with httpx.Client(http1=False, http2=True, base_url=locked.url) as client:
        refused = client.post(CHAT, json=chat_body())
        assert (refused.http_version, refused.status_code) == ("HTTP/2", 401)
        assert client.post(CHAT, json=chat_body(), headers=BEARER).status_code == 200
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("lines", "status"), [((), 401), (("Origin: https://evil.example",), 403), ((f"x-api-key: {KEY}",), 405)]
)
def test_websockets_pass_the_same_door(locked: Server, lines: tuple[str, ...], status: int) -> None:
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
    with Raw(locked) as raw:
        raw.send(head("/v1/chat/completions", *upgrade, *lines, method="GET"))
        assert raw.read_until(b"\r\n\r\n").startswith(f"HTTP/1.1 {status} ".encode())


def test_the_access_log_names_keys_and_never_shows_them(locked: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    locked.request("POST", f"{CHAT}?api_key={KEY}", chat_body(), BEARER)
    locked.post(f"{CHAT}?api_key={KEY}", chat_body())

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "jaxfold.access"]

    wait_until(lambda: len(lines()) == 2)
    assert [line.split()[-1] for line in lines()] == ["key=cli-1", "key=unauthenticated"]
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    assert KEY not in caplog.text and digest not in caplog.text


def test_every_digest_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def spy(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return real(left, right)

    monkeypatch.setattr(jaxfold.api.access.keys.hmac, "compare_digest", spy)
    ring = KeyRing(keys_of(["one", "two", "three"], "env"))
    for key, label in (("one", "env-1"), ("three", "env-3"), ("four", None)):
        compared.clear()
        assert ring.label_of([(b"x-api-key", key.encode())]) == label
        assert compared == [hashlib.sha256(one).digest() for one in (b"one", b"two", b"three")]


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"host"]), st.binary(max_size=30))))
def test_any_headers_are_read(headers: list[tuple[bytes, bytes]]) -> None:
    assert all(presented(headers))
    assert KeyRing(keys_of(["a-key-that-is-longer-than-thirty-bytes"], "cli")).label_of(headers) is None


# Files


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Replace the file as a whole, as an operator should."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)
    return path


def label(ring: KeyRing, key: str) -> str | None:
    return ring.label_of([(b"x-api-key", key.encode())])


def test_a_file_of_keys() -> None:
    text = "\ufeff# keys\n\n  alice: k-alice \nbare-key\nalice:k-alice2\r\nbob.b_2-x:  k#bob\n"
    assert [key.label for key in parse_keys(text.encode())] == ["alice", "file-2", "alice", "bob.b_2-x"]
    digests = [key.digest for key in parse_keys(text.encode())]
    assert digests == [hashlib.sha256(k).digest() for k in (b"k-alice", b"bare-key", b"k-alice2", b"k#bob")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no key"),
        ("# only a remark\n\n", "no key"),
        ("good\nalice:\n", "line 2"),
        ("alice: two words\n", "line 1"),
        ("two words\n", "line 1"),
        (": key\n", "line 1"),
        (f"{'a' * 65}: key\n", "line 1"),
        ("al ice: key\n", "line 1"),
        ("a: bc\nx\ny: \u00e9\n", "line 3"),
        ("same\nx: same\n", "line 2"),
        ("file-3: key\n", "line 1"),
        ("unauthenticated: key\n", "line 1"),
        ("k" * 513, "512"),
        ("\n".join(f"key{n}" for n in range(MAX_KEYS + 1)), str(MAX_KEYS)),
    ],
)
def test_malformed_files(text: str, words: str) -> None:
    with pytest.raises(KeySourceError, match=words) as caught:
        parse_keys(text.encode())
    assert "key1" not in str(caught.value) and "two words" not in str(caught.value)


def test_a_file_that_is_not_text() -> None:
    with pytest.raises(KeySourceError, match="UTF-8"):
        parse_keys(b"\xff\xfe")


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(data: bytes) -> None:
    try:
        keys = parse_keys(data)
    except KeySourceError as error:
        assert "\n" not in str(error)
    else:
        assert keys and all(isinstance(key, Key) and len(key.digest) == 32 for key in keys)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(KeySourceError, match=f"{mode:04o}.*chmod 600"):
        KeyRing(file=write(tmp_path / "keys", KEY, mode))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_modes_that_will_do(tmp_path: Path, mode: int) -> None:
    assert label(KeyRing(file=write(tmp_path / "keys", KEY, mode)), KEY) == "file-1"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, words in (("missing", "cannot be read"), (".", "ordinary"), ("pipe", "ordinary")):
        with pytest.raises(KeySourceError, match=words):
            KeyRing(file=tmp_path / path)


def test_a_new_file_is_seen_at_most_a_second_later(tmp_path: Path) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "old: k-old\n")
    ring = KeyRing(keys_of(["fixed"], "cli"), path, clock)
    assert label(ring, "k-old") == "old"
    write(path, "new: k-new\n")
    clock.now += 0.9
    assert (label(ring, "k-old"), label(ring, "k-new")) == ("old", None)
    clock.now += 0.2
    assert (label(ring, "k-old"), label(ring, "k-new"), label(ring, "fixed")) == (None, "new", "cli-1")


def test_a_reload_does_not_wait(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", "k-old\n")
    ring = KeyRing(file=path, now=Clock())
    write(path, "k-new\n")
    ring.reload()
    assert (label(ring, "k-old"), label(ring, "k-new")) == (None, "file-1")


@pytest.mark.parametrize("fault", ["empty", "malformed", "mode", "missing", "chmod", "truncated"])
def test_a_bad_replacement_closes_until_it_is_put_right(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = write(tmp_path / "keys", "alice: k-alice\n")
    ring = KeyRing(keys_of(["fixed"], "cli"), path, clock)
    match fault:
        case "empty":
            write(path, "")
        case "malformed":
            write(path, "alice: k-alice\nbob: a b\n")
        case "mode":
            write(path, "alice: k-alice\n", 0o644)
        case "missing":
            path.unlink()
        case "chmod":
            path.chmod(0o644)
        case "truncated":
            path.write_text("")
    for _ in range(3):
        clock.now += 2
        assert ring.required
        assert label(ring, "k-alice") is None and label(ring, "fixed") is None
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and "no key is accepted" in errors[0].getMessage()
    assert "k-alice" not in caplog.text
    write(path, "alice: k-alice\n")
    clock.now += 2
    assert (label(ring, "k-alice"), label(ring, "fixed")) == ("alice", "cli-1")


def test_a_closed_server_answers_401_and_probes_go_on(tmp_path: Path) -> None:
    path = write(tmp_path / "keys", f"alice: {KEY}\n")
    with running(ScriptedEngine(reply_ids("hi")), keys=KeyRing(file=path)) as server:
        assert server.request("POST", CHAT, chat_body(), BEARER).status == 200
        write(path, "")
        deadline = time.monotonic() + TIMEOUT_S
        while server.request("POST", CHAT, chat_body(), BEARER).status != 401:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.request("GET", "/health", headers=BEARER).json == {"status": "ok"}


@pytest.mark.parametrize("text", ["", " ", "two words", "\u00e9", "x" * 513, "line\nbreak"])
def test_texts_that_are_no_keys(text: str) -> None:
    with pytest.raises(KeySourceError) as caught:
        keys_of([text], "cli")
    assert not text.strip() or text not in str(caught.value)


def test_too_many_keys() -> None:
    many: list[Any] = [f"key-{n}" for n in range(MAX_KEYS + 1)]
    with pytest.raises(KeySourceError, match=str(MAX_KEYS)):
        KeyRing(keys_of(many, "cli"))
