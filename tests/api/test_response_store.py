"""What a store of responses keeps, in memory and in a real Redis server, with the same tests for both."""

import asyncio
import json
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.responses import store_redis as response_store_redis
from jaxfold.api.responses.store import MemoryStore
from jaxfold.api.responses.store import ResponseStore
from jaxfold.api.responses.store import StoreError
from jaxfold.api.responses.store import StoreSettings
from jaxfold.api.responses.store_redis import PREFIX
from jaxfold.api.responses.store_redis import RedisStore
from jaxfold.api.responses.store_redis import check_redis
from jaxfold.api.responses.stores import open_store
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.redis_server import PASSWORD
from tests.redis_server import RedisServer
from tests.redis_server import running_redis
from tests.scripted_engine import ScriptedEngine

RESPONSES = "/v1/responses"
KINDS = ("memory", "redis")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str | None:
    """The address of an empty Redis server, or None for the store in memory."""
    if request.param == "memory":
        return None
    server: RedisServer = request.getfixturevalue("redis_server")
    client = server.client()
    client.flushall()
    client.close()
    return server.url


def use(url: str | None, work: Callable[[ResponseStore], Awaitable[None]], **limits: Any) -> None:
    """Do something with a store."""

    async def run() -> None:
        store = open_store(StoreSettings(redis_url=url, **limits))
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_put_get_delete(url: str | None) -> None:
    async def work(store: ResponseStore) -> None:
        assert await store.get("a") is None
        assert await store.put("a", b"1\x00\xff")
        assert await store.get("a") == b"1\x00\xff"
        assert await store.put("a", b"22")
        assert await store.get("a") == b"22"
        assert await store.delete("a")
        assert not await store.delete("a")
        assert await store.get("a") is None

    use(url, work)


def test_the_ones_used_last_stay(url: str | None) -> None:
    async def work(store: ResponseStore) -> None:
        for name in "abc":
            assert await store.put(name, name.encode())
            await asyncio.sleep(0.003)  # Redis counts milliseconds
        assert await store.get("a") == b"a"
        await asyncio.sleep(0.003)
        assert await store.put("d", b"d")
        assert [await store.get(name) for name in "abcd"] == [b"a", None, b"c", b"d"]

    use(url, work, max_entries=3)


def test_bytes_are_counted(url: str | None) -> None:
    async def work(store: ResponseStore) -> None:
        assert not await store.put("huge", b"x" * 2000)
        assert await store.put("a", b"x" * 600)
        assert await store.put("a", b"x" * 300)
        await asyncio.sleep(0.003)
        assert await store.put("b", b"x" * 600)
        assert [len(await store.get(name) or b"") for name in "ab"] == [300, 600]
        await store.delete("b")
        await asyncio.sleep(0.003)
        assert await store.put("c", b"x" * 700)
        assert [len(await store.get(name) or b"") for name in "abc"] == [300, 0, 700]
        await asyncio.sleep(0.003)
        assert await store.put("d", b"x" * 400)
        assert [len(await store.get(name) or b"") for name in "acd"] == [0, 0, 400]

    use(url, work, max_mb=1024 / (1 << 20))


def test_nothing_is_kept_where_nothing_may_be(url: str | None) -> None:
    async def work(store: ResponseStore) -> None:
        assert not await store.put("a", b"")

    use(url, work, max_entries=0)


def test_time_to_live_counts_from_the_last_use() -> None:
    clock = [0.0]
    store = MemoryStore(StoreSettings(ttl_minutes=1), now=lambda: clock[0])

    async def work() -> None:
        for name in "ab":
            await store.put(name, b"xx")
        clock[0] = 59
        assert await store.get("a") == b"xx"
        clock[0] = 61
        assert await store.get("b") is None
        assert await store.get("a") == b"xx"
        clock[0] = 122
        assert not await store.delete("a")

    asyncio.run(work())
    assert (len(store), store.bytes) == (0, 0)


def test_redis_forgets_what_is_not_used(redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.flushall()

    async def work(store: ResponseStore) -> None:
        await store.put("a", b"1")
        await store.put("b", b"2")
        assert 0 < client.pttl(f"{PREFIX}record:a") <= 200
        deadline = time.monotonic() + 30
        while await store.get("b") is not None and client.exists(f"{PREFIX}record:a"):
            assert time.monotonic() < deadline
        await store.put("c", b"3")
        assert client.zrange(f"{PREFIX}used", 0, -1) == [b"b", b"c"]
        assert client.get(f"{PREFIX}bytes") == b"2"

    use(redis_server.url, work, ttl_minutes=0.2 / 60)
    deadline = time.monotonic() + 30
    while client.keys("*"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client.close()


def test_records_that_redis_dropped_leave_the_books(redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.flushall()

    async def work(store: ResponseStore) -> None:
        await store.put("a", b"1")
        client.delete(f"{PREFIX}record:a")
        assert await store.get("a") is None
        assert client.get(f"{PREFIX}bytes") == b"0"

    use(redis_server.url, work)
    client.close()


def test_two_servers_share_a_store_and_a_restart_keeps_it(redis_server: RedisServer) -> None:
    settings = StoreSettings(redis_url=redis_server.url)
    with (
        running(ScriptedEngine(reply_ids("one")), responses=settings) as first,
        running(ScriptedEngine(reply_ids("two")), responses=settings) as second,
    ):
        value = first.post(RESPONSES, {"input": "hi"}).json
        assert second.get(f"{RESPONSES}/{value['id']}").json == value
        follow = second.post(RESPONSES, {"input": "more", "previous_response_id": value["id"]})
        assert follow.status == 200
        assert b"one" in bytes(token for token in second.last_request().prompt_ids if token < 256)
    with running(ScriptedEngine(reply_ids("three")), responses=settings) as third:
        assert third.get(f"{RESPONSES}/{follow.json['id']}").json == follow.json
        assert third.request("DELETE", f"{RESPONSES}/{value['id']}").status == 200
        assert third.get(f"{RESPONSES}/{value['id']}").status == 404


def test_replies_come_while_redis_is_gone(tmp_path: Path) -> None:
    with running_redis(tmp_path) as server:
        settings = StoreSettings(redis_url=server.url)
        with running(ScriptedEngine(reply_ids("one")), responses=settings) as api:
            kept = api.post(RESPONSES, {"input": "hi"}).json
            server.stop()
            value = api.post(RESPONSES, {"input": "hi"}).json
            assert value["status"] == "completed" and value["store"] is False
            assert "could not be stored" in value["jaxfold"]["warnings"][0]
            for answer in (
                api.get(f"{RESPONSES}/{kept['id']}"),
                api.request("DELETE", f"{RESPONSES}/{kept['id']}"),
                api.post(RESPONSES, {"input": "hi", "previous_response_id": kept["id"]}),
            ):
                assert answer.status == 503 and answer.headers["retry-after"]
                assert PASSWORD not in answer.error["message"] and "127.0.0.1" not in answer.error["message"]
            with running_redis(tmp_path, server.port):
                value = api.post(RESPONSES, {"input": "hi"}).json
                assert value["store"] is True
                assert api.get(f"{RESPONSES}/{value['id']}").json == value


def test_a_full_redis_is_no_failure_of_the_reply(redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.config_set("maxmemory", "1")
    try:
        with running(ScriptedEngine(reply_ids("one")), responses=StoreSettings(redis_url=redis_server.url)) as api:
            assert api.post(RESPONSES, {"input": "hi"}).json["store"] is False
    finally:
        client.config_set("maxmemory", "0")
        client.close()


def test_the_address_is_checked_at_the_start(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    check_redis(redis_server.url)
    monkeypatch.setattr(response_store_redis, "TIMEOUT_S", 0.2)
    for bad, words in (
        ("http://localhost", "redis://"),
        ("redis://localhost:x/0", "redis://"),
        (f"redis://:wrong@127.0.0.1:{redis_server.port}/0", "refuses the password"),
        ("redis://127.0.0.1:1/0", "no connection"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            check_redis(bad)
        assert "wrong" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


def test_what_is_kept_is_json(redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.flushall()
    with running(ScriptedEngine(reply_ids("one")), responses=StoreSettings(redis_url=redis_server.url)) as api:
        value = api.post(RESPONSES, {"input": "hi", "instructions": "secret"}).json
    record = json.loads(client.get(f"{PREFIX}record:{value['id']}") or b"")
    client.close()
    assert record["response"] == value
    assert [(one["role"], one["content"]) for one in record["messages"]] == [("user", "hi"), ("assistant", "one")]


def test_a_store_that_cannot_be_reached_says_so_in_a_sentence() -> None:
    async def run() -> None:
        store = RedisStore(StoreSettings(), "redis://:pw@127.0.0.1:1/0")
        for call in (store.put("a", b""), store.get("a"), store.delete("a")):
            with pytest.raises(StoreError, match="no connection") as caught:
                await call
            assert "pw" not in str(caught.value)
        await store.close()

    asyncio.run(run())
