"""Runs the replies of one request and writes them in a protocol's style: whole, or as a stream of events."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol

from quart import Response

from jaxfold.api.exchange.connection import Exchange
from jaxfold.api.exchange.rendering import Chunks
from jaxfold.api.exchange.rendering import ReplyOptions
from jaxfold.api.exchange.rendering import stats_json
from jaxfold.api.exchange.rendering import total
from jaxfold.api.exchange.rendering import usage_json
from jaxfold.api.http.errors import as_api_error
from jaxfold.api.http.errors import unavailable
from jaxfold.api.http.wire import DONE
from jaxfold.api.http.wire import event
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import stream_response
from jaxfold.api.operations.metrics import Metrics
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reply import Collected
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import Usage
from jaxfold.runtime.api import ExactnessLevel

MERGE_QUEUE = 64
CUT_OFF = "the reply was cut off because the server is shutting down"


class Style(Protocol):
    """How one protocol writes choices. Strings are JSON text."""

    @property
    def kind(self) -> str: ...

    @property
    def chunk_kind(self) -> str: ...

    def opening(self, index: int) -> str | None:
        """The choice of a stream's first chunk, if there is one before any text."""
        ...

    def delta(self, index: int, piece: Piece) -> str | None:
        """The choice of a chunk with more text; None for what the protocol does not show."""
        ...

    def ending(self, index: int, reason: str) -> str:
        """The choice of the chunk that finishes it."""
        ...

    def choice(self, index: int, whole: Collected) -> Mapping[str, Any]:
        """A whole choice."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request whose replies run: one prompt and one reply for each choice, in the order of their index."""

    style: Style
    prepared: Sequence[Prepared]
    replies: Sequence[Reply]
    reply_id: str
    created: int
    model: str
    options: ReplyOptions
    exactness: ExactnessLevel
    exchange: Exchange
    metrics: Metrics

    async def respond(self) -> Response:
        """The response, streamed if the request asked for that."""
        if self.options.stream:
            return stream_response(self._stream())
        return json_response(await self._whole())

    async def _whole(self) -> dict[str, Any]:
        """Wait for every reply. They run at the same time, whatever the order they are waited for in."""
        choices: list[dict[str, Any]] = []
        usages: list[Usage] = []
        stats: dict[str, Any] = {}
        for index, reply in enumerate(self.replies):
            whole = await reply.collect()
            finish = whole.finish
            stats = self._finished(index, finish)
            choice = dict(self.style.choice(index, whole))
            choices.append(choice if len(self.replies) == 1 else choice | {"jaxfold": stats})
            usages.append(finish.usage)
        body = self._head(self.style.kind) | {"choices": choices, "usage": usage_json(total(usages))}
        return body if len(self.replies) > 1 else body | {"jaxfold": stats}

    async def _stream(self) -> AsyncIterator[bytes]:
        """The events of the stream. A failure in it becomes an error event, then the end mark."""
        try:
            async for part in self._parts():
                yield part
        except Exception as error:
            self.exchange.cancel_replies()
            yield event(as_api_error(error).openai())
        yield DONE

    async def _parts(self) -> AsyncIterator[bytes]:
        prompt_tokens = sum(len(one.prompt_ids) for one in self.prepared)
        chunks = Chunks(self._head(self.style.chunk_kind), self.options, prompt_tokens)
        openings = [self.style.opening(index) for index in range(len(self.replies))]
        if any(openings):
            yield b"".join(chunks.chunk(opening) for opening in openings if opening)
        usages: list[Usage] = []
        seen = [0] * len(self.replies)
        async for index, item in _merged(self.replies):
            if isinstance(item, Finish):
                stats = self._finished(index, item)
                usages.append(item.usage)
                chunks.count(item.usage.completion_tokens - seen[index])
                whole = total(usages) if len(usages) == len(self.replies) else None
                yield chunks.last(self.style.ending(index, item.reason), whole, stats)
                continue
            seen[index] += len(item.token_ids)
            chunks.count(len(item.token_ids))
            choice = self.style.delta(index, item)
            if choice is not None:
                yield chunks.chunk(choice)
        if self.options.include_usage:
            yield chunks.usage(total(usages))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.reply_id, "object": kind, "created": self.created, "model": self.model}

    def _finished(self, index: int, finish: Finish) -> dict[str, Any]:
        """Note the end of a reply; its stats block.

        Raises:
            ApiError: the reply was cancelled under a client that still waits for it.
        """
        if finish.reason == "cancelled":
            raise unavailable(CUT_OFF)
        self.metrics.observe(finish.stats, self.exchange.elapsed())
        return stats_json(finish, self.prepared[index], self.exactness, self.options.return_token_ids)


async def _merged(replies: Sequence[Reply]) -> AsyncIterator[tuple[int, ReplyEvent]]:
    """The events of all replies as they come, each with the index of its reply."""
    if len(replies) == 1:
        async for item in replies[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, ReplyEvent] | Exception] = asyncio.Queue(MERGE_QUEUE)

    async def pump(index: int, reply: Reply) -> None:
        try:
            async for item in reply:
                await queue.put((index, item))
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(index, reply)) for index, reply in enumerate(replies)]
    try:
        running = len(replies)
        while running:
            got = await queue.get()
            if isinstance(got, Exception):
                raise got
            running -= isinstance(got[1], Finish)
            yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
