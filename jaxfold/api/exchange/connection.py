"""One HTTP exchange as ASGI sees it: what must hold whatever the handler does.

* The engine's work ends with the exchange. A client that leaves, a handler that fails and a response that is never
  iterated all end here, so this is the one place where replies are cancelled.
* A request body that the handler did not read must not be taken for the next request, and must not fill the server's
  queue (Hypercorn would then wait for ever). It is read and dropped for a moment; if it goes on, the response says
  `Connection: close`, the client gets time to read it, and the connection ends.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from jaxfold.api.access.keys import UNAUTHENTICATED
from jaxfold.api.http.cancellable import Cancellable
from jaxfold.api.http.errors import printable
from jaxfold.api.state import ServerState

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

SCOPE_KEY = "jaxfold.exchange"
SETTLE_S = 1.0
"""How long a refusal waits for the rest of a short body, so that the connection can be kept."""
LINGER_S = 2.0
"""How long a connection with an unread body is kept after the response, so that the client can read it."""
ENDING = (408, 413)
"""Refusals of a body that is known to go on."""
UNAUTHORISED = 401
"""Whoever guesses keys pays for a connection each time."""
QUIET_PATHS = ("/metrics", "/health", "/health/live", "/health/ready")

access_log = logging.getLogger("jaxfold.access")


class Exchange:
    """One request and its response. Found by handlers under `scope[SCOPE_KEY]`.

    `route` is the name of the route in metrics, `key` the label of the request's API key; both are set on its way in.
    `last` ends the connection after the response.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, state: ServerState) -> None:
        self.started = time.perf_counter()
        self.status = 0
        self.route = "unknown"
        self.key: str | None = None
        self.last = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._state = state
        self._replies: list[Cancellable] = []
        self._body_over = asyncio.Event()
        self._dropping = False
        self._response_over = False
        self._left = False

    def adopt(self, reply: Cancellable) -> None:
        """Cancel `reply` when the exchange ends; the server does not stop before that."""
        if not self._replies:
            self._state.generating(self)
        self._replies.append(reply)

    def elapsed(self) -> float:
        """Seconds since the request's head arrived."""
        return time.perf_counter() - self.started

    def cancel_replies(self) -> None:
        """End every reply of this exchange; the handler then sees them finish as cancelled."""
        for reply in self._replies:
            reply.cancel()

    def close(self) -> None:
        """The exchange is over, one way or another."""
        self.cancel_replies()
        self._state.done_generating(self)
        if self._left and not self._response_over:
            self._state.metrics.client_disconnections += 1
        keyed = self._state.settings.keys.required
        label = (self.key or UNAUTHENTICATED) if keyed else None
        if self.status >= 200:
            self._state.metrics.count(self.route, self.status, label)
        path, method = self._scope["path"], self._scope["method"]
        if self.status < 400 and method in ("GET", "HEAD") and path.removeprefix("/v1") in QUIET_PATHS:
            return
        # While the server goes down nobody can tell which of the two ended the connection.
        ended = "" if self._response_over else " (cut off)" if self._state.draining else " (client left)"
        status = f"{self.status}{ended}"
        who = f" key={label}" if keyed else ""
        access_log.info("%s %s %s %.3f s%s", method, printable(path), status, self.elapsed(), who)

    async def receive(self) -> Message:
        """The server's next event, with what the handler must not see left out."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._left = True
            self._body_over.set()
        elif not message.get("more_body", False):
            self._body_over.set()
        if self._dropping and message.get("body"):
            message["body"] = b""
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the response on."""
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
            if not self._body_over.is_set():
                await self._settle(message)
            if self.last or message["status"] == UNAUTHORISED:
                self._end_connection(message)
        elif kind == "http.response.body" and not message.get("more_body", False):
            if self._dropping:
                await self._body_ends(LINGER_S)
            self._response_over = True
        await self._send(message)

    async def _settle(self, start: Message) -> None:
        """The response begins before the body has ended: drop the rest of it, and close if that takes too long."""
        self._dropping = True
        if start["status"] not in ENDING and await self._body_ends(SETTLE_S):
            self._dropping = False
        else:
            self._end_connection(start)

    def _end_connection(self, start: Message) -> None:
        """End the connection after this response. In HTTP/2 a request is only a stream of it."""
        close = (b"connection", b"close")
        if self._scope["http_version"] < "2" and close not in start["headers"]:
            start["headers"] = [*start["headers"], close]

    async def _body_ends(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._body_over.wait(), timeout)
        except TimeoutError:
            return False
        return True


def exchange_of(scope: Any) -> Exchange:
    """The exchange that a handler's request belongs to."""
    exchange: Exchange = scope[SCOPE_KEY]
    return exchange


class ConnectionGuard:
    """ASGI application around the Quart application."""

    def __init__(self, app: AsgiApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = _plain_path(scope["path"])
        exchange = Exchange(scope, receive, send, self._state)
        scope[SCOPE_KEY] = exchange
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            exchange.close()


def _plain_path(path: str) -> str:
    """The path of a request target: one leading slash (also for "", "*" and absolute targets), none at the end."""
    if not path.startswith("/"):
        try:
            path = urlsplit(path).path
        except ValueError:
            path = ""
    return "/" + path.strip("/")
