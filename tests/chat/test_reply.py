import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator
from collections.abc import Iterator
from contextlib import aclosing
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jaxfold.chat.reply import FAILED_MESSAGE
from jaxfold.chat.reply import SLOW_MESSAGE
from jaxfold.chat.reply import Inbox
from jaxfold.chat.reply import Reply
from jaxfold.chat.service import ChatService
from jaxfold.chat.service import ChatSettings
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import Finish
from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import Limits
from jaxfold.chat.types import TextDelta
from jaxfold.chat.wakes import BATCH
from jaxfold.chat.wakes import Wakes
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Tokens
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import Script
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.asyncio
TOKENIZER = ByteTokenizer()


@asynccontextmanager
async def engine_of(
    script: Script, settings: ChatSettings | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedEngine, ChatService]]:
    engine = ScriptedEngine(script, **options)
    service = ChatService(engine, TOKENIZER, ChatTemplate(None, TOKENIZER), settings)
    try:
        yield engine, service
    finally:
        service.close()
        engine.close()


async def start(service: ChatService, **limits: Any) -> Reply:
    return await service.start(await service.prepare_completion(CompletionRequest("x", limits=Limits(**limits))))


async def idle(engine: ScriptedEngine) -> bool:
    return await asyncio.to_thread(engine.wait_idle)


async def test_events_come_as_they_are_made() -> None:
    async with engine_of(b"abc", hang=True) as (engine, service):
        reply = await start(service)
        async with aclosing(aiter(reply)) as events:
            text = ""
            while text != "abc":
                event = await anext(events)
                assert isinstance(event, TextDelta)
                text += event.text
            assert engine.snapshot().requests_running == 1
        assert await idle(engine)


async def test_a_reply_ends_with_finish_and_is_read_once() -> None:
    async with engine_of(b"abc") as (engine, service):
        reply = await start(service)
        events = [event async for event in reply]
        assert isinstance(events[-1], Finish)
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "abc"
        with pytest.raises(RuntimeError):
            aiter(reply)
        reply.cancel()
        assert engine.cancelled == []


async def test_many_replies_at_once_keep_apart() -> None:
    async with engine_of(lambda request: [*request.prompt_ids] * 50, lanes=3, tokens_per_event=4) as (_, service):

        async def one(n: int) -> str:
            prepared = await service.prepare_completion(CompletionRequest(f"<{n}>"))
            return (await (await service.start(prepared)).collect()).text

        assert await asyncio.gather(*map(one, range(20))) == [f"<{n}>" * 50 for n in range(20)]


async def test_tokens_after_a_stop_string_never_show() -> None:
    async with engine_of(b"ab STOP cd", tokens_per_event=100) as (_, service):
        reply = await (await start(service, stop=("STOP",))).collect()
        assert (reply.text, reply.finish.reason, reply.finish.stop_sequence) == ("ab ", "stop", "STOP")
        assert reply.finish.token_ids == tuple(b"ab STOP")
        assert reply.finish.stats.completion_tokens == reply.finish.usage.completion_tokens == 7


async def test_the_limit() -> None:
    async with engine_of(b"abcdef") as (_, service):
        reply = await (await start(service, max_tokens=3)).collect()
        assert (reply.text, reply.finish.reason) == ("abc", "length")


async def test_cancel_ends_with_what_there_is() -> None:
    async with engine_of(b"abc", hang=True) as (engine, service):
        reply = await start(service)
        collecting = asyncio.create_task(reply.collect())
        while engine.snapshot().generation_tokens_running < 3:
            await asyncio.sleep(0.001)
        reply.cancel()
        collected = await collecting
        assert (collected.text, collected.finish.reason) == ("abc", "cancelled")
        assert await idle(engine)


@pytest.mark.parametrize("way", ["task", "aclose", "break", "context", "error"])
async def test_a_reader_that_goes_away_cancels_the_request(way: str) -> None:
    async with engine_of(b"abc", hang=True) as (engine, service):
        reply = await start(service)
        if way == "task":
            task = asyncio.create_task(reply.collect())
            await asyncio.sleep(0.02)
            task.cancel()
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        elif way == "aclose":
            async with aclosing(aiter(reply)) as events:
                await anext(events)
        elif way == "break":
            async for _ in reply:
                break
            await asyncio.sleep(0)
        elif way == "context":
            async with reply:
                pass
        else:
            with pytest.raises(ZeroDivisionError):
                async with reply:
                    async for event in reply:
                        raise ZeroDivisionError(event)
        assert await idle(engine)
        assert set(engine.cancelled) == {reply.request_id}


async def test_a_failure_shows_the_text_before_it_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async with engine_of(b"abcdef", fail_after=3) as (engine, service):
        reply = await start(service)
        text = ""
        with caplog.at_level(logging.ERROR), pytest.raises(GenerationError) as caught:
            async for event in reply:
                assert isinstance(event, TextDelta)
                text += event.text
        assert (text, str(caught.value)) == ("abc", FAILED_MESSAGE)
        assert f"request {reply.request_id} failed: the script says so" in caplog.text
        assert engine.cancelled == []
        engine.fail_after = None
        assert (await (await start(service)).collect()).text == "abcdef"


@pytest.mark.parametrize("settings", [ChatSettings(max_unread_events=10), ChatSettings(max_unread_bytes=10)])
async def test_a_reader_that_falls_behind_is_cut_off(settings: ChatSettings) -> None:
    async with engine_of(b"abc" * 10, settings, hang=True) as (engine, service):
        reply = await start(service)
        assert await idle(engine)
        assert engine.cancelled == [reply.request_id]
        with pytest.raises(GenerationError, match=SLOW_MESSAGE):
            await reply.collect()


async def test_a_reader_that_keeps_up_is_not() -> None:
    ahead = threading.Semaphore(5)

    def script(_: EngineRequest) -> Iterator[int]:
        for token_id in b"abc" * 50:
            assert ahead.acquire(timeout=10)
            yield token_id

    async with engine_of(script, ChatSettings(max_unread_events=10, max_unread_bytes=10)) as (_, service):
        text = ""
        async for event in await start(service):
            if isinstance(event, TextDelta):
                text += event.text
                ahead.release(len(event.token_ids))
        assert text == "abc" * 50


async def test_a_late_reader_gets_everything_in_few_events() -> None:
    async with engine_of(b"abc" * 1000) as (engine, service):
        reply = await start(service)
        assert await idle(engine)
        await asyncio.sleep(0)
        events = [event async for event in reply]
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "abc" * 1000
        assert len(events) <= 3000 // 256 + 3


async def test_the_loop_is_woken_once_for_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    inbox = Inbox(lambda _: 1, 100, 100, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", lambda *call: wakes.append(call))
        for _ in range(50):
            inbox.put(Tokens((1,)))
        assert len(wakes) == 1
        assert len(inbox.take()) == 50
        inbox.put(Tokens((1,)))
        assert len(wakes) == 1  # the loop has not come to the first one yet
    wakes[0][0]()  # type: ignore[index]
    await asyncio.wait_for(inbox.wait(), 5)
    assert len(inbox.take()) == 1


async def test_a_round_of_many_replies_is_taken_in_turns() -> None:
    wakes = Wakes()
    inboxes = [Inbox(lambda _: 1, 100, 100, lambda: None, wakes) for _ in range(3 * BATCH + 1)]
    order: list[int] = []

    async def read(at: int) -> None:
        await inboxes[at].wait()
        order.append(at)

    readers = [asyncio.create_task(read(at)) for at in range(len(inboxes))]
    await asyncio.sleep(0)
    for inbox in inboxes:
        inbox.put(Tokens((1,)))
    seen = [0]
    while len(order) < len(inboxes):
        await asyncio.sleep(0)
        seen.append(len(order))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= BATCH
    assert order == sorted(order)
    await asyncio.gather(*readers)


async def test_the_engine_does_not_notice_a_closed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    inbox = Inbox(lambda _: 1, 100, 100, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", closed)
        inbox.put(Tokens((1,)))
    assert inbox.take() == [Tokens((1,))]
