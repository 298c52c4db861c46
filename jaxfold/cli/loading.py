"""From a path and flags to a running engine and the chat service on top of it."""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from jaxfold.chat.service import ChatService
from jaxfold.chat.service import ChatSettings
from jaxfold.chat.template import ChatTemplate
from jaxfold.cli.engine_flags import engine_options
from jaxfold.cli.errors import CliError
from jaxfold.cli.models import locate
from jaxfold.cli.sampling_flags import default_sampling
from jaxfold.runtime.api import SamplingParams

if TYPE_CHECKING:
    from jaxfold.checkpoints import Checkpoint
    from jaxfold.runtime.loader import LoadedModel
    from jaxfold.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Started:
    """A model that is ready to answer. `close` ends its engine and threads."""

    model: "LoadedModel"
    service: ChatService
    sampling: SamplingParams

    def close(self) -> None:
        self.service.close()
        self.model.engine.close()


def start(
    model: str,
    flags: Mapping[str, Any],
    progress: Callable[[str], None],
    settings: ChatSettings | None = None,
    template: str | None = None,
) -> Started:
    """Fetch MODEL where needed, load it and build its chat service. Blocks until the engine is ready.

    Args:
        flags: the command's parsed options, those of the engine and of sampling among them.
        progress: called with the text of each step as it begins.
        template: source of a chat template that takes the place of the model's own.

    Raises:
        CliError, CheckpointError, TokenizerError, EngineError, ChatTemplateError: one sentence for the caller.
    """
    path = locate(model, progress)
    options = engine_options(path, flags)
    progress("loading JAX")
    from jaxfold.runtime.loader import load_engine

    parts: list[tuple[ChatTemplate, SamplingParams]] = []

    def accept(checkpoint: "Checkpoint", tokenizer: "Tokenizer") -> None:
        # A template or a default that is wrong is told now, not after a minute of compiling.
        source = checkpoint.chat_template if template is None else template
        renderer = ChatTemplate(source, tokenizer, special_texts(checkpoint.tokenizer_files.config))
        parts.append((renderer, default_sampling(checkpoint.generation_config, flags, path)))

    loaded = load_engine(options, progress, accept)
    renderer, sampling = parts[0]
    return Started(loaded, ChatService(loaded.engine, loaded.tokenizer, renderer, settings), sampling)


def special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The `*_token` texts of a tokenizer_config.json, whether plain or written as {"content": ...}."""
    texts = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def read_template(path: Path | None) -> str | None:
    """The text of --chat-template.

    Raises:
        CliError: the file cannot be read as UTF-8.
    """
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"--chat-template {path}: {error}") from None
