"""From a path and flags to a running engine and the chat service on top of it."""

import math
from collections import Counter
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
from jaxfold.cli.sampling_flags import chosen_sampling
from jaxfold.cli.sampling_flags import flag_sampling
from jaxfold.runtime.api import SamplingParams

if TYPE_CHECKING:
    from jaxfold.api.settings import ModelFile
    from jaxfold.checkpoints import Checkpoint
    from jaxfold.runtime.hosts.group import Leader
    from jaxfold.runtime.loader import LoadedModel
    from jaxfold.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Started:
    """A model that is ready to answer. `close` ends its engine and threads."""

    model: "LoadedModel"
    service: ChatService
    sampling: SamplingParams
    sampling_set: frozenset[str]

    def close(self) -> None:
        self.service.close()
        self.model.engine.close()


def start(
    model: str,
    flags: Mapping[str, Any],
    progress: Callable[[str], None],
    settings: ChatSettings | None = None,
    template: str | None = None,
    hosts: "Leader | None" = None,
) -> Started:
    """Fetch MODEL where needed, load it and build its chat service. Blocks until the engine is ready.

    Args:
        flags: the command's parsed options, those of the engine and of sampling among them.
        progress: called with the text of each step as it begins.
        template: source of a chat template that takes the place of the model's own.
        hosts: those that share the model with this one.

    Raises:
        CliError, CheckpointError, TokenizerError, EngineError, ChatTemplateError: one sentence for the caller.
    """
    path = locate(model, progress)
    if flags.get("draft_model") is not None:
        flags = {**flags, "draft_model": locate(flags["draft_model"], progress)}
    options = engine_options(path, flags)
    progress("loading JAX")
    from jaxfold.checkpoints.catalogue import recommended_sampling
    from jaxfold.runtime.constraints.grammars import XGrammars
    from jaxfold.runtime.loader import load_engine

    parts: list[tuple[ChatTemplate, dict[str, Any]]] = []

    def accept(checkpoint: "Checkpoint", tokenizer: "Tokenizer") -> None:
        # A template or a default that is wrong is told now, not after a minute of compiling.
        source = checkpoint.chat_template if template is None else template
        special = special_texts(checkpoint.tokenizer_files.config)
        renderer = ChatTemplate(source, tokenizer, special, tool_format=flags.get("tool_format"))
        config = {**recommended_sampling(model), **checkpoint.generation_config}
        parts.append((renderer, chosen_sampling(config, flags, path)))

    loaded = load_engine(options, progress, accept, hosts)
    renderer, chosen = parts[0]
    grammars = XGrammars(loaded.tokenizer, loaded.engine.info.vocab_size)
    service = ChatService(loaded.engine, loaded.tokenizer, renderer, settings, grammars)
    return Started(loaded, service, SamplingParams(**chosen), frozenset(chosen))


def chat_settings(flags: Mapping[str, Any]) -> ChatSettings:
    """What the options of `serve` say of every chat."""
    given = {name: flags[name] for name in ("reply_limit", "thinking_budget") if flags[name] is not None}
    if flags["max_tokens"] is not None:
        given["default_max_tokens"] = flags["max_tokens"]
    config_wins = flags["sampling_precedence"] == "config"
    pinned = flag_sampling(flags) if config_wins else {}
    return ChatSettings(**given, stop=flags["stop"], merge_stops=config_wins, pinned_sampling=pinned)


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


def model_file(checkpoint: "Checkpoint") -> "ModelFile":
    """What lists of models say of a checkpoint."""
    from jaxfold.api.settings import ModelFile

    path = checkpoint.path
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    numbers: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        numbers[tensor.stored] += math.prod(tensor.shape)
    context = checkpoint.config.get("max_position_embeddings")
    return ModelFile(
        path=path.resolve(),
        size=sum(one.stat().st_size for one in files),
        modified=max(one.stat().st_mtime for one in files),
        format=checkpoint.format,
        quantisation=numbers.most_common(1)[0][0],
        parameters=numbers.total(),
        context=context if isinstance(context, int) else None,
    )
