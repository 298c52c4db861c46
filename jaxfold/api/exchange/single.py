"""Runs the one reply of a request for a protocol that shows it as blocks: whole, or as a stream of named events."""

import uuid
from collections.abc import AsyncGenerator
from collections.abc import AsyncIterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Protocol

from quart import Response

from jaxfold.api.exchange.blocks import Blocks
from jaxfold.api.exchange.blocks import Step
from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.rendering import stats_json
from jaxfold.api.exchange.replies import CUT_OFF
from jaxfold.api.exchange.turns import KEEP_ALIVE_S
from jaxfold.api.exchange.turns import start_turn
from jaxfold.api.exchange.turns import with_silences
from jaxfold.api.http.errors import unavailable
from jaxfold.api.http.wire import dumps
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import stream_response
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended: `stats` is its `jaxfold` block."""

    finish: Finish
    blocks: Blocks
    stats: dict[str, Any]


class Writer(Protocol):
    """Writes one reply; bytes are whole events. The whole body is what the events built up, so the two agree."""

    @property
    def silence(self) -> bytes:
        """What clients skip, for a stream that has been silent."""
        ...

    def opening(self) -> bytes:
        """The events before anything of the reply is known."""
        ...

    def step(self, step: Step) -> bytes:
        """The events of one step."""
        ...

    async def ending(self, end: Ending) -> bytes:
        """The last events. Afterwards `body` is complete."""
        ...

    def body(self) -> Mapping[str, Any]:
        """The whole reply."""
        ...

    def failure(self, error: Exception) -> bytes:
        """The last events of a reply that could not be finished."""
        ...


@dataclass(frozen=True, slots=True)
class SingleCall:
    """One request with one prompt and one reply."""

    incoming: Incoming
    prepared: Prepared
    writer: Writer

    async def respond(self) -> Response:
        """Start the reply and respond with it.

        Raises:
            EngineError, RequestError: as `ChatService.start`; nothing was sent yet.
        """
        reply = await start_turn(self.incoming, self.prepared)
        if self.incoming.options.stream:
            return stream_response(self._stream(reply))
        async for _ in self._events(reply):
            pass
        return json_response(self.writer.body())

    async def _stream(self, reply: Reply) -> AsyncIterator[bytes]:
        try:
            yield self.writer.opening()
            async for part in with_silences(self._events(reply), KEEP_ALIVE_S):
                yield self.writer.silence if part is None else part
        except Exception as error:
            self.incoming.exchange.cancel_replies()
            yield self.writer.failure(error)

    async def _events(self, reply: Reply) -> AsyncGenerator[bytes, None]:
        blocks = Blocks()
        async for event in reply:
            if isinstance(event, Finish):
                steps = blocks.finish(cut=event.reason == "length")
                end = Ending(event, blocks, self._finished(event))
                yield b"".join(map(self.writer.step, steps)) + await self.writer.ending(end)
                continue
            steps = blocks.push(event)
            if steps:
                yield b"".join(map(self.writer.step, steps))

    def _finished(self, finish: Finish) -> dict[str, Any]:
        """Note the end of the reply; its stats block.

        Raises:
            ApiError: the reply was cancelled under a client that still waits for it.
        """
        if finish.reason == "cancelled":
            raise unavailable(CUT_OFF)
        call = self.incoming
        call.state.metrics.observe(finish.stats, call.exchange.elapsed())
        return stats_json(finish, self.prepared, call.service.engine.info.exactness, call.options.return_token_ids)


def item_id(prefix: str) -> str:
    """A new id of the kind `msg_...`."""
    return f"{prefix}_{uuid.uuid4().hex}"


def named_event(name: str, value: Mapping[str, Any]) -> bytes:
    """One Server-Sent Event with a name."""
    return f"event: {name}\ndata: {dumps(value)}\n\n".encode("ascii")
