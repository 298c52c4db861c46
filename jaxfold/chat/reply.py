"""A running reply: from the engine's thread into the event loop, bounded, and cancelled when nobody reads it."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from jaxfold.chat.assembly import ReplyAssembler
from jaxfold.chat.types import Finish
from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import Logprob
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import WrittenCall
from jaxfold.chat.wakes import Wakes
from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import PromptScores
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.api import TokenScore

FAILED_MESSAGE = "the server could not finish this reply because of an internal error"
SLOW_MESSAGE = "the reply was cancelled because it was read too slowly"
STEP_EVENTS = 256

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """A whole reply."""

    text: str
    reasoning: str
    finish: Finish
    tool_calls: tuple[WrittenCall, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


class Inbox:
    """Events of one request on their way from the engine's thread to the event loop.

    The reader is woken once, through `wakes`, for all events that it has not taken yet. One that leaves more than
    `max_events` events or `max_bytes` of text lying here loses them: `on_overflow` is called once, on the loop, and
    `overflowed` is set.
    """

    def __init__(
        self,
        token_size: Callable[[int], int],
        max_events: int,
        max_bytes: int,
        on_overflow: Callable[[], None],
        wakes: Wakes | None = None,
    ) -> None:
        self._wakes = Wakes() if wakes is None else wakes
        self._arrived = asyncio.Event()
        self._token_size = token_size
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._on_overflow = on_overflow
        self._lock = threading.Lock()
        self._events: list[EngineEvent] = []
        self._bytes = 0
        self._woken = False
        self.overflowed = False

    def put(self, event: EngineEvent) -> None:
        """The engine's sink. Never blocks, never raises."""
        size = sum(map(self._token_size, event.ids)) if isinstance(event, Tokens) else 0
        with self._lock:
            if self.overflowed:
                return
            self._events.append(event)
            self._bytes += size
            if isinstance(event, Tokens) and (len(self._events) > self._max_events or self._bytes > self._max_bytes):
                self.overflowed = True
                self._events.clear()
            elif self._woken:
                return
            self._woken = True
            overflowed = self.overflowed
        self._wake(overflowed)

    def take(self) -> list[EngineEvent]:
        """All events since the last call."""
        with self._lock:
            events, self._events = self._events, []
            self._bytes = 0
            self._woken = False
        return events

    async def wait(self) -> None:
        """Return when there may be something to take."""
        await self._arrived.wait()
        self._arrived.clear()

    def _wake(self, overflowed: bool) -> None:
        self._wakes.add(self._arrived.set)
        if overflowed:
            self._wakes.add(self._on_overflow)


class Reply:
    """A reply that the engine has accepted. It has one reader.

    Iterate over it for its events; the last one is `Finish`. A reader that stops early must close the iteration, or
    use `async with reply`, or call `cancel`: the engine then ends the request within a round.
    """

    def __init__(self, request_id: str, engine: Engine, inbox: Inbox, assembler: ReplyAssembler) -> None:
        self.request_id = request_id
        self._engine = engine
        self._inbox = inbox
        self._assembler = assembler
        self._backlog: deque[EngineEvent] = deque()
        self._failed = False
        self._ended = False
        self._read = False

    def cancel(self) -> None:
        """End the request. A reader still gets what was generated, and a `Finish` with reason "cancelled"."""
        if not self._ended:
            self._engine.cancel(self.request_id)

    async def collect(self) -> Collected:
        """The whole reply at once.

        Raises:
            GenerationError: the engine failed.
        """
        texts: list[str] = []
        reasonings: list[str] = []
        starts: list[ToolCallStart] = []
        arguments: list[list[str]] = []
        finish: Finish | None = None
        logprobs: list[Logprob] = []
        async for event in self:
            if not isinstance(event, Finish):
                logprobs += event.logprobs
            match event:
                case TextDelta():
                    texts.append(event.text)
                case ToolCallStart():
                    starts.append(event)
                    arguments.append([])
                case ToolCallDelta():
                    arguments[event.index].append(event.arguments)
                case ReasoningDelta():
                    reasonings.append(event.text)
                case Finish():
                    finish = event
        assert finish is not None  # the iteration ends with it, or raises
        written = (WrittenCall(one.id, one.name, "".join(arguments[one.index])) for one in starts)
        return Collected("".join(texts), "".join(reasonings), finish, tuple(written), tuple(logprobs))

    def __aiter__(self) -> AsyncGenerator[ReplyEvent, None]:
        if self._read:
            raise RuntimeError("a reply can be read once")
        self._read = True
        return self._events()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def _events(self) -> AsyncGenerator[ReplyEvent, None]:
        try:
            while True:
                for event in await self._next():
                    yield event
                    if isinstance(event, Finish):
                        return
        finally:
            self.cancel()

    async def _next(self) -> list[ReplyEvent]:
        """At least one event; all that are certain by now, up to a step's work."""
        while True:
            if self._backlog:
                await asyncio.sleep(0)  # a long backlog must not keep the loop from its other readers
            else:
                self._backlog.extend(self._inbox.take())
            if self._inbox.overflowed:
                raise GenerationError(SLOW_MESSAGE)
            if self._failed:
                raise GenerationError(FAILED_MESSAGE)
            if not self._backlog:
                await self._inbox.wait()
                continue
            events = self._step()
            if events:
                return events

    def _step(self) -> list[ReplyEvent]:
        ids: list[int] = []
        scores: list[TokenScore] = []
        for _ in range(min(STEP_EVENTS, len(self._backlog))):
            event = self._backlog.popleft()
            match event:
                case Tokens():
                    ids += event.ids
                    scores += event.scores
                case PromptScores():
                    self._assembler.score_prompt(event.scores)
                case Finished():
                    self._ended = True
                    return [*self._assembler.push(ids, scores), *self._assembler.finish(event)]
                case Failed():
                    self._ended = self._failed = True
                    logger.error("request %s failed: %s", self.request_id, event.message)
        return self._assembler.push(ids, scores)
