"""What the routes share: the service, the settings, the metrics, and whether the server is going down."""

import asyncio
import time
from typing import Protocol

from jaxfold.api.embedding_service import EmbeddingService
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import unavailable
from jaxfold.api.operations.metrics import Metrics
from jaxfold.api.settings import ApiSettings
from jaxfold.chat.service import ChatService
from jaxfold.runtime.api import Engine
from jaxfold.runtime.encoders.api import EncoderEngine

ENCODER_ONLY = "This server hosts an embedding model. Use /v1/embeddings or /api/embed."
NO_ENCODER = (
    "This server does not host an embedding model. Start it with jaxfold serve --embeddings MODEL, "
    "with or without a chat model."
)


class Generating(Protocol):
    """An exchange with running replies."""

    def cancel_replies(self) -> None: ...


class ServerState:
    """Lives as long as the application, on its event loop only.

    `service` is None while the model loads: the server can already answer its health routes then. So is `encoder`.
    """

    def __init__(self, service: ChatService | None, settings: ApiSettings) -> None:
        self.service = service
        self.encoder: EmbeddingService | None = None
        self.settings = settings
        self.metrics = Metrics(self.engine, self.encoder_engine)
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

    def encoder_engine(self) -> EncoderEngine | None:
        """The encoder's engine, once there is one."""
        return None if self.encoder is None else self.encoder.engine

    @property
    def loaded(self) -> bool:
        """Whether everything that is to be served is there."""
        chat = self.service is not None or not self.settings.serves_chat
        return chat and (self.encoder is not None or self.settings.encoder is None)

    @property
    def ready(self) -> bool:
        """True when a request that comes now would be admitted, or refused for reasons of its own."""
        engines = [engine for engine in (self.engine(), self.encoder_engine()) if engine is not None]
        return not self.draining and self.loaded and all(engine.snapshot().ready for engine in engines)

    @property
    def healthy(self) -> bool:
        """False once an engine has given up."""
        engines = [engine for engine in (self.engine(), self.encoder_engine()) if engine is not None]
        return all(engine.snapshot().healthy for engine in engines)

    def require_service(self) -> ChatService:
        """The service, if requests can be admitted.

        Raises:
            ApiError: 400 where only an encoder is served; 503 with Retry-After while the model is loading and while
                the server drains.
        """
        if not self.settings.serves_chat:
            raise ApiError(400, ENCODER_ONLY, param="model", code="embedding_model")
        if self.draining:
            raise unavailable("the server is shutting down")
        if self.service is None:
            raise unavailable("the model is still loading")
        return self.service

    def require_encoder(self) -> EmbeddingService:
        """The encoder, if requests can be admitted.

        Raises:
            ApiError: 400 where none is served; 503 with Retry-After while it is loading and while the server drains.
        """
        if self.settings.encoder is None:
            raise ApiError(400, NO_ENCODER, param="model", code="embeddings_not_supported")
        if self.draining:
            raise unavailable("the server is shutting down")
        if self.encoder is None:
            raise unavailable("the embedding model is still loading")
        return self.encoder

    def drain(self) -> None:
        """Not ready from now on: new requests are 503, running and queued replies go on."""
        self.draining = True
        engine = self.engine()
        if engine is not None:
            engine.drain()
        if self.encoder is not None:
            self.encoder.engine.drain()

    def generating(self, exchange: Generating) -> None:
        """An exchange has its first reply."""
        self._generating.add(exchange)
        self._idle.clear()

    def done_generating(self, exchange: Generating) -> None:
        """An exchange has ended, with or without replies."""
        self._generating.discard(exchange)
        if not self._generating:
            self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether any reply is running."""
        return bool(self._generating)

    async def idle(self) -> None:
        """Return when no exchange has a running reply."""
        await self._idle.wait()

    def cancel_all(self) -> None:
        """End every running reply; their clients get an error."""
        for exchange in tuple(self._generating):
            exchange.cancel_replies()
