"""A reply as the routes under /api write it: tool calls come whole, and long silences can be filled."""

import asyncio
from collections.abc import AsyncGenerator

from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.replies import CUT_OFF
from jaxfold.api.http.errors import unavailable
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import WrittenCall

KEEP_ALIVE_S = 15.0
"""After this long without a byte an open stream gets one that clients skip: proxies cut silent connections."""


TurnEvent = TextDelta | ReasoningDelta | WrittenCall | Finish


async def start_turn(call: Incoming, prepared: Prepared) -> Reply:
    """Hand one prepared prompt to the engine; the reply ends with the request's exchange.

    Raises:
        EngineError, RequestError: as `ChatService.start`; nothing was sent yet.
    """
    reply = await call.service.start(prepared)
    call.exchange.adopt(reply)
    return reply


async def turn_events(reply: Reply) -> AsyncGenerator[TurnEvent, None]:
    """The events of a reply; a call comes when it is over.

    Raises:
        GenerationError: the engine failed.
        ApiError: the reply was cancelled under a client that still waits for it.
    """
    calls = _Calls()
    async for event in reply:
        done = calls.push(event)
        if done is not None:
            yield done
        match event:
            case TextDelta() | ReasoningDelta():
                yield event
            case Finish():
                if event.reason == "cancelled":
                    raise unavailable(CUT_OFF)
                yield event


class _Calls:
    """Joins a call's start and the pieces of its arguments."""

    def __init__(self) -> None:
        self._open: ToolCallStart | None = None
        self._pieces: list[str] = []

    def push(self, event: ReplyEvent) -> WrittenCall | None:
        """The call that this event ends, if it does."""
        if isinstance(event, ToolCallDelta):
            self._pieces.append(event.arguments)
            return None
        done = None
        if self._open is not None:
            done = WrittenCall(self._open.id, self._open.name, "".join(self._pieces))
            self._open, self._pieces = None, []
        if isinstance(event, ToolCallStart):
            self._open = event
        return done


async def with_silences[T](events: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T | None, None]:
    """The items of `events`, and None each time that `seconds` have passed without one."""
    waiting: asyncio.Task[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({waiting}, timeout=seconds)
            if not done:
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await events.aclose()
