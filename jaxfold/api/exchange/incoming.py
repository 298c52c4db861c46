"""A generating request on its way in: what such routes read before their own fields, and how its replies begin."""

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from quart import Response
from quart import request

from jaxfold.api.exchange.connection import Exchange
from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.exchange.rendering import ReplyOptions
from jaxfold.api.exchange.rendering import new_id
from jaxfold.api.exchange.rendering import read_model
from jaxfold.api.exchange.rendering import read_options
from jaxfold.api.exchange.replies import Call
from jaxfold.api.exchange.replies import Style
from jaxfold.api.http.fields import Body
from jaxfold.api.http.known_fields import Route
from jaxfold.api.http.known_fields import check_known_fields
from jaxfold.api.http.wire import read_object
from jaxfold.api.state import ServerState
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reply import Reply
from jaxfold.chat.service import ChatService

LARGE_BODY = 1 << 18
"""Bytes from which a body's fields are read in a thread: the event loop serves others meanwhile."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request whose body is a JSON object with fields that the route supports."""

    body: Body
    size: int
    state: ServerState
    service: ChatService
    exchange: Exchange
    model: str
    options: ReplyOptions

    async def read[T](self, reader: Callable[[], T]) -> T:
        """What `reader` makes of the body, without keeping the event loop from others if the body is large."""
        return reader() if self.size < LARGE_BODY else await asyncio.to_thread(reader)

    async def answer(self, style: Style, id_prefix: str, prepared: Sequence[Prepared]) -> Response:
        """Start one reply for each prompt and respond with them.

        Raises:
            EngineError, RequestError: as `ChatService.start`; nothing was sent yet.
        """
        replies: list[Reply] = []
        for one in prepared:
            # The queue takes the first prompt or refuses the call; the others go with it.
            reply = await self.service.start(one, accepted=bool(replies))
            self.exchange.adopt(reply)
            replies.append(reply)
        call = Call(
            style=style,
            prepared=prepared,
            replies=replies,
            reply_id=new_id(id_prefix),
            created=int(time.time()),
            model=self.model,
            options=self.options,
            exactness=self.service.engine.info.exactness,
            exchange=self.exchange,
            metrics=self.state.metrics,
        )
        return await call.respond()


async def receive(state: ServerState, route: Route) -> Incoming:
    """The current request of a route that takes OpenAI's chat or completion fields. Raises as `accept` does."""
    return await accept(state, lambda body: check_known_fields(body, route))


async def accept(state: ServerState, check: Callable[[Body], None]) -> Incoming:
    """The current request of a generating route; `check` refuses the fields that the route does not support.

    Raises:
        ApiError, RequestError: it cannot be served, in the order: not ready, the body, its fields, the model.
    """
    service = state.require_service()
    body, size = await read_object(request)
    check(body)
    return Incoming(
        body=body,
        size=size,
        state=state,
        service=service,
        exchange=exchange_of(request.scope),
        model=read_model(body, state.settings),
        options=read_options(body),
    )
