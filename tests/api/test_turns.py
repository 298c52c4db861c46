"""Tool calls come whole, silences are filled, and what was cut off is no reply."""

import asyncio
from collections.abc import AsyncGenerator
from collections.abc import Sequence
from typing import Any
from typing import cast

import pytest

from jaxfold.api.exchange.turns import turn_events
from jaxfold.api.exchange.turns import with_silences
from jaxfold.api.http.errors import ApiError
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import StopReason
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import Usage
from jaxfold.chat.types import WrittenCall
from jaxfold.runtime.api import RequestStats

STATS = RequestStats(1, 1, 0, 0.0, 0.0, 0.0, None, 1, 0, 0, 0, "", 0)


def finish(reason: StopReason = "stop") -> Finish:
    return Finish(reason, Usage(1, 1, 0, 0), STATS, ())


def whole(events: Sequence[ReplyEvent]) -> list[Any]:
    async def replayed() -> AsyncGenerator[ReplyEvent, None]:
        for event in events:
            yield event

    async def read() -> list[Any]:
        return [event async for event in turn_events(cast(Reply, replayed()))]

    return asyncio.run(read())


def test_calls_come_when_they_are_over() -> None:
    events: list[ReplyEvent] = [
        ReasoningDelta("Hm."),
        TextDelta("See:"),
        ToolCallStart(0, "a", "add"),
        ToolCallDelta(0, '{"x"'),
        ToolCallDelta(0, ": 1}"),
        ToolCallStart(1, "b", "stop"),
        finish("tool_calls"),
    ]
    calls = [WrittenCall("a", "add", '{"x": 1}'), WrittenCall("b", "stop", "")]
    assert whole(events) == [*events[:2], *calls, events[-1]]


def test_text_after_a_call_comes_after_it() -> None:
    events: list[ReplyEvent] = [ToolCallStart(0, "a", "add"), ToolCallDelta(0, "{}"), TextDelta("Done."), finish()]
    assert whole(events) == [WrittenCall("a", "add", "{}"), events[2], events[3]]


def test_a_cancelled_reply_is_no_reply() -> None:
    with pytest.raises(ApiError, match="shutting down"):
        whole([TextDelta("a"), finish("cancelled")])


def test_silences_are_filled() -> None:
    async def slow() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.sleep(0.05)
        yield 2

    async def read() -> list[int | None]:
        return [item async for item in with_silences(slow(), 0.01)]

    items = asyncio.run(read())
    assert items[0] == 1 and items[-1] == 2 and None in items[1:-1]


def test_leaving_early_ends_the_source() -> None:
    ended = []

    async def endless() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
                await asyncio.sleep(10)
        finally:
            ended.append(True)

    async def read() -> None:
        items = with_silences(endless(), 0.01)
        assert [await anext(items), await anext(items)] == [1, None]
        await items.aclose()

    asyncio.run(read())
    assert ended == [True]
