"""A server with the tiny BERT encoder, alone or beside a scripted chat model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxfold.api.app import create_app
from jaxfold.api.app import state_of
from jaxfold.api.embedding_service import EmbeddingService
from jaxfold.api.settings import ApiSettings
from jaxfold.cli.loading import model_file
from jaxfold.runtime.encoders.engine import LocalEncoder
from jaxfold.runtime.encoders.loader import EncoderOptions
from jaxfold.runtime.encoders.loader import LoadedEncoder
from jaxfold.runtime.encoders.loader import load_encoder
from tests.api.harness import Server
from tests.api.harness import running
from tests.models.encoder_support import ENCODERS
from tests.scripted_engine import ScriptedEngine

ENCODER = "tiny-bert"
CONTEXT = 64


class Shared:
    """An engine for several servers, one after the other: that one of them goes down is no reason to stop it."""

    def __init__(self, engine: LocalEncoder) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def drain(self) -> None:
        """Left undone."""


def tiny_encoder(cache: Path) -> LoadedEncoder:
    return load_encoder(EncoderOptions(model=ENCODERS / "bert", compile_cache_dir=cache, self_check=False))


@contextmanager
def encoder_only(loaded: LoadedEncoder, **settings: Any) -> Iterator[Server]:
    """A server without a chat model."""
    chosen = {"model": ENCODER, "encoder": ENCODER, "serves_chat": False, "drain_seconds": 5, **settings}
    app = create_app(None, ApiSettings(**chosen, encoder_file=model_file(loaded.checkpoint)))
    state_of(app).encoder = EmbeddingService(Shared(loaded.engine), loaded.tokenizer)
    engine = ScriptedEngine()
    server = Server(app, engine)
    try:
        yield server
    finally:
        server.ask_to_stop()
        server.ask_to_stop()
        server.join()
        engine.close()


@contextmanager
def chat_and_encoder(loaded: LoadedEncoder, engine: ScriptedEngine, **settings: Any) -> Iterator[Server]:
    """A server with both."""
    file = model_file(loaded.checkpoint)
    with running(engine, **{"encoder": ENCODER, "encoder_file": file, **settings}) as server:
        server.state.encoder = EmbeddingService(Shared(loaded.engine), loaded.tokenizer)
        yield server
