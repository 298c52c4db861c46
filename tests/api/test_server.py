"""Draining and stopping: by request in this process, and by signal in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxfold.api.server import BindError
from jaxfold.api.server import listen
from tests.api.harness import CHAT
from tests.api.harness import COMPLETIONS
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

LONG = reply_ids("x" * 200)


def test_running_streams_end_whole_and_new_requests_are_refused() -> None:
    engine = ScriptedEngine(LONG, delay_s=0.01)
    with running(engine, drain_seconds=TIMEOUT_S) as server:
        streams = [Stream(server.port, CHAT, chat_body()) for _ in range(4)]
        readers = [stream.events() for stream in streams]
        for reader in readers:
            next(reader)
        kept = server.connection()
        assert ask(kept, "GET", "/health/ready").status == 200
        server.ask_to_stop()
        wait_until(lambda: server.state.draining)
        for path, body in ((CHAT, chat_body()), (COMPLETIONS, {"prompt": "x"}), (CHAT, chat_body(stream=True))):
            answer = server.post(path, body)
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert answer.error["type"] == "server_error"
        ready = ask(kept, "GET", "/health/ready")
        assert (ready.status, int(ready.headers["retry-after"]) > 0) == (503, True)
        assert server.get("/health/live").status == 200
        health = server.get("/health")
        assert (health.status, health.json["ready"], health.json["draining"]) == (200, False, True)
        for stream, reader in zip(streams, readers, strict=True):
            chunks = list(reader)
            assert stream.done
            assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "x" * 200
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        kept.close()
        server.join()
        assert server.exit_code == 0


def test_a_whole_reply_is_drained_too() -> None:
    engine = ScriptedEngine(LONG, delay_s=0.005)
    with running(engine, drain_seconds=TIMEOUT_S) as server:
        connection = server.connection()
        connection.request("POST", CHAT, json.dumps(chat_body()))
        wait_until(lambda: engine.requests)
        server.ask_to_stop()
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["choices"][0]["message"]["content"] == "x" * 200
        connection.close()
        server.join()
        assert server.exit_code == 0


def test_what_is_left_at_the_deadline_ends_with_an_error() -> None:
    engine = ScriptedEngine(())
    engine.hang = True
    with running(engine, drain_seconds=0.3) as server:
        stream = Stream(server.port, CHAT, chat_body())
        reader = stream.events()
        next(reader)
        whole = server.connection()
        whole.request("POST", CHAT, json.dumps(chat_body()))
        wait_until(lambda: len(engine.requests) == 2)
        server.ask_to_stop()
        (last,) = list(reader)
        assert stream.done
        assert set(last) == {"error"}
        assert last["error"]["type"] == "server_error"
        response = whole.getresponse()
        assert response.status == 503
        assert json.loads(response.read())["error"]["type"] == "server_error"
        whole.close()
        server.join()
        assert server.exit_code == 0
        assert engine.wait_idle()


def test_asking_twice_forces() -> None:
    engine = ScriptedEngine(())
    engine.hang = True
    with running(engine, drain_seconds=3600) as server:
        stream = Stream(server.port, CHAT, chat_body())
        server.ask_to_stop()
        wait_until(lambda: server.state.draining)
        server.ask_to_stop()
        server.join()
        assert server.exit_code == 1
        stream.close()
        assert engine.wait_idle()


def test_an_idle_server_stops_at_once_with_idle_connections_open() -> None:
    with running(ScriptedEngine(reply_ids("ok")), drain_seconds=3600) as server:
        connection = server.connection()
        assert ask(connection, "POST", CHAT, chat_body()).status == 200
        server.ask_to_stop()
        server.join()
        assert server.exit_code == 0
        connection.close()


def test_a_stuck_reader_does_not_keep_the_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxfold.api.server.CLOSE_S", 0.3)
    engine = ScriptedEngine([1] * 60_000)
    with running(engine, drain_seconds=0.2) as server, Raw(server, receive_buffer=4096) as raw:
        body = json.dumps(chat_body(stream=True, max_tokens=60_001)).encode()
        raw.send(head(CHAT, f"Content-Length: {len(body)}") + body)
        wait_until(lambda: engine.requests)
        assert engine.wait_idle(TIMEOUT_S)
        server.ask_to_stop()
        server.join()
        assert server.exit_code == 0


def test_an_address_that_is_taken_is_one_sentence(server: Server) -> None:
    with pytest.raises(BindError, match=f"port {server.port}") as caught:
        listen("127.0.0.1", server.port, 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(BindError, match=r"198\.51\.100\.1"):
        listen("198.51.100.1", 0, 1)
    with pytest.raises(BindError, match="cannot listen on"):
        listen("no such host", 0, 1)


PROGRAM = """
import asyncio, sys
from jaxfold.api.app import create_app
from jaxfold.api.server import serve
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.service import ChatService
from jaxfold.chat.template import ChatTemplate
from tests.api.harness import CHATML, reply_ids
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

async def main():
    engine, tokenizer = ScriptedEngine(reply_ids("x" * 200), delay_s=0.01), ByteTokenizer()
    app = create_app(ChatService(engine, tokenizer, ChatTemplate(CHATML, tokenizer)), ApiSettings(model="m"))
    return await serve(app, "127.0.0.1", 0, on_listening=lambda host, port: print(port, flush=True))

sys.exit(asyncio.run(main()))
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_drain_a_real_process(process: subprocess.Popen[str], number: signal.Signals) -> None:
    assert process.stdout is not None and process.stderr is not None
    port = int(process.stdout.readline())
    streams = [Stream(port, CHAT, chat_body()) for _ in range(4)]
    readers = [stream.events() for stream in streams]
    for reader in readers:
        next(reader)
    process.send_signal(number)
    for stream, reader in zip(streams, readers, strict=True):
        assert list(reader)[-1]["choices"][0]["finish_reason"] == "stop"
        assert stream.done
    assert process.wait(TIMEOUT_S) == 0
    assert "Traceback" not in process.stderr.read()
