"""What the routes share: the service, the settings, the metrics, and whether the server is going down."""

import asyncio
import time
from typing import Protocol

from jaxfold.api.errors import unavailable
from jaxfold.api.metrics import Metrics
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.service import ChatService
from jaxfold.runtime.api import Engine


class Generating(Protocol):
    """An exchange with running replies."""

    def cancel_replies(self) -> None: ...


class ServerState:
    """Lives as long as the application, on its event loop only.

    `service` is None while the model loads: the server can already answer its health routes then.
    """

    def __init__(self, service: ChatService | None, settings: ApiSettings) -> None:
        self.service = service
        self.settings = settings
        self.metrics = Metrics(self.engine)
        self.created = int(time.time())
        self.draining = False
        self._pages = {"/"}
        self._page_folders: tuple[str, ...] = ()
        self._generating: set[Generating] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def add_page(self, path: str) -> None:
        """Let GET and HEAD of `path`, or of all below it if it ends with a slash, pass without a key.

        For the files of a web page only: a browser cannot send a key with the address that its user types.
        """
        if path.endswith("/") and path != "/":
            self._page_folders += (path,)
        else:
            self._pages.add(path)

    def is_page(self, path: str) -> bool:
        """Whether `path` is one of the open files of a web page."""
        return path in self._pages or path.startswith(self._page_folders)

    def engine(self) -> Engine | None:
        """The engine, once there is one."""
        return None if self.service is None else self.service.engine

    @property
    def ready(self) -> bool:
        """True when a request that comes now would be admitted, or refused for reasons of its own."""
        engine = self.engine()
        return not self.draining and engine is not None and engine.snapshot().ready

    def require_service(self) -> ChatService:
        """The service, if requests can be admitted.

        Raises:
            ApiError: 503 with Retry-After while the model is loading and while the server drains.
        """
        if self.draining:
            raise unavailable("the server is shutting down")
        if self.service is None:
            raise unavailable("the model is still loading")
        return self.service

    def drain(self) -> None:
        """Not ready from now on: new requests are 503, running and queued replies go on."""
        self.draining = True
        engine = self.engine()
        if engine is not None:
            engine.drain()

    def generating(self, exchange: Generating) -> None:
        """An exchange has its first reply."""
        self._generating.add(exchange)
        self._idle.clear()

    def done_generating(self, exchange: Generating) -> None:
        """An exchange has ended, with or without replies."""
        self._generating.discard(exchange)
        if not self._generating:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no exchange has a running reply."""
        await self._idle.wait()

    def cancel_all(self) -> None:
        """End every running reply; their clients get an error."""
        for exchange in tuple(self._generating):
            exchange.cancel_replies()
