"""The options of `jaxfold serve` for embeddings, and the encoder that they start."""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from jaxfold.cli.engine_flags import default_cache_dir
from jaxfold.cli.errors import CliError
from jaxfold.cli.models import locate
from jaxfold.cli.models import served_name
from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import ModelId
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options

if TYPE_CHECKING:
    from jaxfold.api.embedding_service import EmbeddingService
    from jaxfold.api.settings import ModelFile

EMBEDDINGS: Final = "Embeddings"

embedding_flags: Final[Decorator] = options(
    option(
        "--embeddings",
        metavar="MODEL",
        group=EMBEDDINGS,
        help="An encoder for /v1/embeddings and /api/embed, as all-minilm:l6-v2; with MODEL beside it, or alone.",
    ),
    option(
        "--embedding-name",
        type=ModelId(),
        metavar="ID",
        group=EMBEDDINGS,
        show_default="the file's or folder's name",
        help="The encoder's id, where a chat model is served too; alone it takes --name and --alias.",
    ),
    option(
        "--embedding-context-size",
        type=click.IntRange(min=2),
        group=EMBEDDINGS,
        show_default="what the encoder was made for",
        help="Most tokens of one text.",
    ),
    option(
        "--embedding-dtype",
        type=click.Choice(["auto", "f32", "bf16", "int8"]),
        default="auto",
        group=EMBEDDINGS,
        help="How the encoder's weights are kept and computed with; auto is f32 on a CPU, else bf16.",
    ),
)


@dataclass(frozen=True)
class Names:
    """The ids of what is served. `chat` is None on a server without a chat model, `encoder` where there is none."""

    chat: str | None
    encoder: str | None

    @property
    def main(self) -> str:
        return self.chat or self.encoder or ""


def served_names(model: str | None, flags: Mapping[str, Any]) -> Names:
    """The ids that MODEL and --embeddings are served under.

    Raises:
        CliError: there is neither of them, or both would have one id.
    """
    encoder, own = flags.get("embeddings"), flags.get("embedding_name")
    if model is None and encoder is None:
        raise CliError("name a MODEL (such as smollm2:135m), or an encoder with --embeddings (all-minilm:l6-v2)")
    if encoder is None:
        if own is not None:
            raise CliError("--embedding-name needs --embeddings")
        return Names(served_name(model or "", flags["name"]), None)
    if model is None:
        return Names(None, own or served_name(encoder, flags["name"]))
    names = Names(served_name(model, flags["name"]), served_name(encoder, own))
    if names.encoder in (names.chat, *flags["alias"]):
        raise CliError(f"both models would be called {names.encoder}: give the encoder an --embedding-name")
    return names


@dataclass(frozen=True)
class StartedEncoder:
    """An encoder that is ready, and what lists of models say of its checkpoint."""

    service: "EmbeddingService"
    file: "ModelFile"


def start_encoder(flags: Mapping[str, Any], progress: Callable[[str], None]) -> StartedEncoder:
    """Fetch the encoder of --embeddings where needed and load it. Blocks until it is ready.

    Raises:
        CliError, CheckpointError, EngineError: one sentence for the caller.
    """
    path = locate(flags["embeddings"], progress)
    cache = None
    if flags.get("disk_cache", False):
        cache = (flags.get("cache_dir") or default_cache_dir()) / "programs"
    progress("loading JAX")
    from jaxfold.api.embedding_service import EmbeddingService
    from jaxfold.cli.loading import model_file
    from jaxfold.runtime.encoders.loader import EncoderOptions
    from jaxfold.runtime.encoders.loader import load_encoder

    chosen = EncoderOptions(
        model=path,
        context=flags["embedding_context_size"],
        dtype=flags["embedding_dtype"],
        max_queue=flags["max_queue"],
        max_queue_tokens=flags["max_queue_tokens"],
        compile_cache_dir=cache,
        self_check=flags["self_check"],
    )
    loaded = load_encoder(chosen, progress)
    return StartedEncoder(EmbeddingService(loaded.engine, loaded.tokenizer), model_file(loaded.checkpoint))
