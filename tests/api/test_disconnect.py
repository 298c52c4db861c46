"""A client that leaves frees its lane, whatever it was waiting for; many clients at once get their own replies."""

import concurrent.futures
import json

import pytest

from jaxfold.runtime.api import EngineRequest
from tests.api.harness import CHAT
from tests.api.harness import COMPLETIONS
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.sse import Stream
from tests.api.sse import events
from tests.scripted_engine import ScriptedEngine

ENDLESS = {"max_tokens": 60_000, "ignore_eos": True}


def endless(request: EngineRequest) -> "Endless":
    return Endless()


class Endless:
    """The letter x for ever."""

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> int:
        return ord("x")


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, {"prompt": ["a", "b", "c"]})])
def test_leaving_in_the_middle_of_a_stream(path: str, body: dict[str, object]) -> None:
    engine = ScriptedEngine(endless, delay_s=0.002)
    with running(engine) as server:
        stream = Stream(server.port, path, {**body, **ENDLESS})
        received = stream.events()
        for _ in range(3):
            next(received)
        stream.close()
        assert engine.wait_idle(TIMEOUT_S)
        assert {request.request_id for request in engine.requests} <= set(engine.cancelled)
        assert engine.snapshot().cancelled_total == len(engine.requests)
        server.works()


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), (COMPLETIONS, {"prompt": ["a", "b", "c"]})])
def test_leaving_while_waiting_for_a_whole_reply(path: str, body: dict[str, object]) -> None:
    engine = ScriptedEngine(endless, delay_s=0.002)
    with running(engine) as server:
        connection = server.connection()
        connection.request("POST", path, json.dumps({**body, **ENDLESS}))
        wait_until(lambda: engine.requests)
        connection.close()
        assert engine.wait_idle(TIMEOUT_S)
        assert engine.snapshot().cancelled_total == len(engine.requests)
        wait_until(lambda: server.state.metrics.client_disconnections == 1)


def test_leaving_before_the_first_token() -> None:
    engine = ScriptedEngine(())
    engine.hang = True
    with running(engine) as server:
        stream = Stream(server.port, CHAT, chat_body())
        wait_until(lambda: len(engine.requests) == 1)
        stream.close()
        assert engine.wait_idle(TIMEOUT_S)


def test_leaving_while_queued() -> None:
    engine = ScriptedEngine(endless, lanes=1, delay_s=0.002)
    with running(engine) as server:
        first = Stream(server.port, CHAT, chat_body(**ENDLESS))
        wait_until(lambda: len(engine.requests) == 1)
        second = server.connection()
        second.request("POST", CHAT, json.dumps(chat_body(**ENDLESS)))
        wait_until(lambda: len(engine.requests) == 2)
        second.close()
        first.close()
        assert engine.wait_idle(TIMEOUT_S)
        assert engine.snapshot().cancelled_total == 2


def test_leaving_in_the_middle_of_the_body(server: Server) -> None:
    connection = server.connection()
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", "100")
    connection.endheaders(b'{"messages": ')
    connection.close()
    server.works()


def test_many_clients_that_leave() -> None:
    engine = ScriptedEngine(endless, delay_s=0.002)
    with running(engine) as server:
        for turn in range(30):
            stream = Stream(server.port, CHAT, chat_body(**ENDLESS))
            if turn % 2:
                next(stream.events())
            stream.close()
        assert engine.wait_idle(TIMEOUT_S)
        assert engine.snapshot().cancelled_total == 30


def test_64_streams_at_once() -> None:
    def script(request: EngineRequest) -> list[int]:
        seed = request.sampling.seed or 0
        return reply_ids(f"reply {seed} " * (1 + seed % 7))

    with running(ScriptedEngine(script, lanes=16)) as server:

        def one(seed: int) -> str:
            chunks = events(server, CHAT, chat_body(seed=seed))
            return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            texts = list(pool.map(one, range(64)))
        assert texts == [f"reply {seed} " * (1 + seed % 7) for seed in range(64)]


def test_a_closed_connection_is_given_up_at_once() -> None:
    """Its socket must not wait for the idle timer of a connection that could still be used."""
    with running(ScriptedEngine(reply_ids("ok")), keep_alive_s=3600) as server:
        for _ in range(20):
            server.works()
        wait_until(lambda: server.open_connections() == 0)
