"""Connections: bodies of every kind, refusals that leave the connection in order, slow and hostile clients."""

import json
import socket
from collections.abc import Iterator

import pytest

from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import ask
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.rawsocket import Raw
from tests.api.rawsocket import head
from tests.api.sse import Stream
from tests.scripted_engine import ScriptedEngine

GOOD = json.dumps(chat_body(max_tokens=4)).encode()
MIB = 1 << 20


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/v1/nope", "POST", {}, 404),
        (CHAT, "PUT", {}, 405),
        ("/health", "POST", {}, 405),
        (CHAT, "POST", {"Content-Encoding": "gzip"}, 415),
        (CHAT, "POST", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (CHAT, "POST", {"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_a_refused_body_does_not_disturb_the_next_request(
    server: Server, path: str, method: str, headers: dict[str, str], status: int, size: int
) -> None:
    connection = server.connection()
    for _ in range(2):
        answer = ask(connection, method, path, b"x" * size, headers)
        assert answer.status == status
        assert answer.error["type"] == "invalid_request_error"
        assert ask(connection, "POST", CHAT, GOOD).status == 200
    connection.close()


def test_one_connection_serves_many_requests(server: Server) -> None:
    connection = server.connection()
    connection.connect()
    first = connection.sock
    for body in (GOOD, b"{", GOOD, b'{"messages": []}', GOOD):
        ask(connection, "POST", CHAT, body)
        assert connection.sock is first
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with Raw(server) as raw:
        one = head(CHAT, f"Content-Length: {len(GOOD)}") + GOOD
        last = head("/v1/nope", "Content-Length: 2", "Connection: close") + b"{}"
        raw.send(one + one + last)
        data = raw.read_all()
    assert data.count(b"HTTP/1.1 200") == 2
    assert data.rindex(b"HTTP/1.1 404") > data.rindex(b"HTTP/1.1 200")


def test_chunked_bodies_are_decoded(server: Server) -> None:
    connection = server.connection()
    connection.request("POST", CHAT, iter([GOOD[:7], GOOD[7:30], GOOD[30:]]), encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().read().startswith(b'{"id":"chatcmpl-')
    connection.close()


def test_identity_is_no_encoding_and_types_are_free(server: Server) -> None:
    for headers in ({"Content-Encoding": "identity"}, {"Content-Type": "text/plain"}, {"Content-Type": "nonsense"}):
        assert server.post(CHAT, GOOD, headers).status == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_above_the_limit_is_refused_while_it_is_read(server: Server, declared: bool) -> None:
    """The fixture's limit is 1 MiB; the client must get the answer though it is still sending."""
    length = "Content-Length: 3000000000" if declared else "Transfer-Encoding: chunked"
    block = b" " * 65536
    with Raw(server) as raw:
        raw.send(head(CHAT, length))
        for _ in range(40):
            raw.send(block if declared else b"10000\r\n" + block + b"\r\n")
        data = raw.read_until(b"}}")
    assert data.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in data.lower()
    error = json.loads(data.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
    assert "1 MiB" in error["message"]
    assert not server.engine.requests
    server.works()


def test_the_largest_body(server: Server) -> None:
    body = json.dumps(chat_body("x" * (MIB // 2))).encode()
    answer = server.post(CHAT, body.ljust(MIB))
    assert answer.status == 400  # read, and too long for the context
    assert answer.error["code"] == "context_length_exceeded"
    assert server.post(CHAT, body.ljust(MIB + 1)).status == 413


def test_expect_continue(server: Server) -> None:
    with Raw(server) as raw:
        raw.send(head(CHAT, f"Content-Length: {len(GOOD)}", "Expect: 100-continue", "Connection: close"))
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        raw.send(GOOD)
        assert b"HTTP/1.1 200" in raw.read_all()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/nowhere"])
def test_a_body_with_two_lengths_ends_the_connection(server: Server, path: str) -> None:
    with Raw(server) as raw:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
        raw.send(head(path, "Transfer-Encoding: chunked", f"Content-Length: {len(body)}") + body)
        answer = raw.read_all()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"not both" in answer
    assert server.get("/health/live").status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        head(CHAT, "Content-Length: nine"),
        head(CHAT, "Content-Length: 1", "Content-Length: 2"),
        head(CHAT, "Transfer-Encoding: chunked") + b"zz\r\n",
        head("*", "Connection: close", method="OPTIONS"),
        head("?x=1", "Connection: close", method="GET"),
        head("http://[", "Connection: close", method="GET"),
        head("http://localhost/nope", "Connection: close", method="GET"),
        head("/%ff%00%0a", "Connection: close", method="GET"),
        b"GET / HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n",
        b"GET /nope HTTP/1.0\r\n\r\n",
    ],
    ids=lambda value: value[:30].decode(),
)
def test_broken_requests_never_give_5xx_or_hang(server: Server, request_bytes: bytes) -> None:
    with Raw(server) as raw:
        raw.send(request_bytes)
        data = raw.read_all()
    assert data.startswith(b"HTTP/1.1 4") or data.startswith(b"HTTP/1.1 200"), data
    server.works()


@pytest.mark.parametrize("path", ["/", "/nope", CHAT])
def test_a_websocket_handshake_is_refused(server: Server, path: str, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    with Raw(server) as raw:
        raw.send(head(path, *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", method="GET"))
        assert raw.read_all().startswith(b"HTTP/1.1 4")
    assert not [record for record in caplog.records if record.exc_info]
    server.works()


def test_absolute_targets_are_paths(server: Server) -> None:
    with Raw(server) as raw:
        raw.send(head("http://elsewhere.test/health/live", "Connection: close", method="GET"))
        assert raw.read_all().startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(REPLY)), body_timeout_s=0.5, keep_alive_s=1.0) as server:
        yield server


def test_a_body_that_does_not_arrive(impatient: Server) -> None:
    with Raw(impatient) as raw:
        raw.send(head(CHAT, "Content-Length: 100") + b"{")
        data = raw.read_all()
    assert data.startswith(b"HTTP/1.1 408")
    assert json.loads(data.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    impatient.works()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHo"])
def test_a_head_that_does_not_arrive(impatient: Server, sent: bytes) -> None:
    with Raw(impatient) as raw:
        raw.send(sent)
        assert raw.read_all() == b""
    impatient.works()


def test_quiet_waiting_is_not_slow(impatient: Server) -> None:
    """A reply may take longer than every timeout that is meant for the request."""
    engine = impatient.engine
    engine.script, engine.delay_s = reply_ids("x" * 20), 0.1
    try:
        answer = impatient.post(CHAT, chat_body())
        assert answer.json["choices"][0]["message"]["content"] == "x" * 20
    finally:
        engine.delay_s = 0.0


def test_streams_outlive_the_response_timeout() -> None:
    engine = ScriptedEngine(reply_ids("x" * 12), delay_s=0.1)
    with running(engine, change=lambda app: app.config.update(RESPONSE_TIMEOUT=0.3)) as server:
        stream = Stream(server.port, CHAT, chat_body())
        chunks = list(stream.events())
        assert stream.done
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "x" * 12


def test_a_slow_reader_holds_up_nobody_and_loses_nothing() -> None:
    text = "y" * 40_000
    engine = ScriptedEngine(reply_ids(text), tokens_per_event=2)
    with running(engine) as server:
        slow = Stream(server.port, CHAT, chat_body(max_tokens=50_000))
        assert engine.wait_idle(TIMEOUT_S)
        server.works()
        chunks = list(slow.events())
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux ends connections that stop reading")
def test_a_reader_that_stops_for_good_is_cut_off() -> None:
    engine = ScriptedEngine([1] * 60_000)
    engine.hang = True  # so that nothing but the cut ends the reply
    with running(engine, send_timeout_s=1.0) as server, Raw(server, receive_buffer=4096) as raw:
        body = json.dumps(chat_body(stream=True, max_tokens=60_001)).encode()
        raw.send(head(CHAT, f"Content-Length: {len(body)}") + body)
        wait_until(lambda: engine.requests)
        assert engine.wait_idle(TIMEOUT_S)
        assert engine.snapshot().cancelled_total == 1
        engine.hang = False
        server.works()
