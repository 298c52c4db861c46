"""The options of every command that starts an engine, and the `EngineOptions` made from them."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from typing import Final
from typing import get_args

import click

from jaxfold.cli.errors import CliError
from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options
from jaxfold.runtime.options import MOST_DRAFTS
from jaxfold.runtime.options import ComputeDtype
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.options import KvDtype
from jaxfold.runtime.options import OptionsError
from jaxfold.runtime.options import WeightDtype

ENGINE: Final = "Engine"
CACHES: Final = "Caches"
EXACTNESS: Final = "Exactness"

_capacity_flags: Final = options(
    option(
        "--context",
        type=click.IntRange(min=1),
        group=ENGINE,
        show_default="what the model was trained for, if it fits",
        help="Tokens of one conversation, prompt and reply together. A value that cannot fit is refused.",
    ),
    option(
        "--parallel",
        type=click.IntRange(min=1),
        default=8,
        group=ENGINE,
        help="Replies that run at the same time.",
    ),
    option(
        "--memory-fraction",
        type=Real(min=0, max=1, min_open=True),
        default=0.8,
        group=ENGINE,
        help="Part of the free memory that weights and cache may take.",
    ),
    option(
        "--page-size",
        type=click.Choice(["16", "32", "64", "128", "256"]),
        default="64",
        group=ENGINE,
        help="Tokens of one cache page.",
    ),
)

_compute_flags: Final = options(
    option(
        "--weight-dtype",
        type=click.Choice(get_args(WeightDtype)),
        default="auto",
        group=ENGINE,
        help="How weights are kept.",
    ),
    option(
        "--compute-dtype",
        type=click.Choice(get_args(ComputeDtype)),
        default="auto",
        group=ENGINE,
        help="What products are computed in.",
    ),
    option(
        "--kv-dtype",
        type=click.Choice(get_args(KvDtype)),
        default="auto",
        group=ENGINE,
        help="How cached keys and values are kept.",
    ),
    option(
        "--tp",
        type=click.IntRange(min=1),
        default=1,
        group=ENGINE,
        help="Devices that the model is split over; the tokens are those of one device.",
    ),
    option(
        "--overlap/--no-overlap",
        default=True,
        group=ENGINE,
        help="Start a step before the last one's tokens are read; the tokens are the same either way.",
    ),
    option(
        "--draft/--no-draft",
        default=True,
        group=ENGINE,
        help="Guess next tokens and check several in one step where that pays; the tokens are the same either way.",
    ),
    option(
        "--draft-tokens",
        type=click.IntRange(min=1, max=MOST_DRAFTS),
        default=7,
        group=ENGINE,
        help="Most tokens that are guessed for a reply at once.",
    ),
    option(
        "--draft-model",
        metavar="MODEL",
        group=ENGINE,
        help="A smaller model with the same tokenizer (a name, a path or a Hugging Face id) that guesses too.",
    ),
)

_cache_flags: Final = options(
    option(
        "--prefix-cache/--no-prefix-cache",
        default=True,
        group=CACHES,
        help="Reuse the computed pages of earlier prompts.",
    ),
    option(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        group=CACHES,
        show_default="$XDG_CACHE_HOME/jaxfold, else ~/.cache/jaxfold",
        help="Folder of compiled programs and converted weights.",
    ),
    option(
        "--disk-cache/--no-disk-cache",
        default=True,
        group=CACHES,
        help="Keep compiled programs and converted weights, so that the next start is quick.",
    ),
)

_exactness_flags: Final = options(
    option(
        "--self-check/--no-self-check",
        default=True,
        group=EXACTNESS,
        help="At start, compare the bits of rows run alone and in company, and set the exactness level.",
    ),
    option(
        "--seed-salt",
        type=int,
        default=0,
        group=EXACTNESS,
        help="Goes into the seed of requests that name none.",
    ),
)

engine_flags: Final[Decorator] = options(_capacity_flags, _compute_flags, _cache_flags, _exactness_flags)
"""Adds the options that `engine_options` reads."""

queue_flags: Final[Decorator] = options(
    option(
        "--max-queue",
        type=click.IntRange(min=1),
        default=256,
        group="Limits",
        help="Requests that may wait; more are answered 429 at once.",
    ),
    option(
        "--max-queue-tokens",
        type=click.IntRange(min=1),
        default=1 << 20,
        group="Limits",
        help="Prompt tokens that may wait, all requests together.",
    ),
    option(
        "--decode-share",
        type=Real(min=0, max=1),
        default=0.25,
        group="Limits",
        help="Seconds of decoding for each second of prefill while replies run; 0: whole prompts first.",
    ),
)
"""Adds the options that only matter when several requests come at once."""


def engine_options(model: Path, flags: Mapping[str, Any]) -> EngineOptions:
    """The engine's options from a command's parsed flags; flags that a command does not have keep their defaults.

    Raises:
        CliError: values that do not go together, named as flags.
    """
    chosen = {field.name: flags[field.name] for field in fields(EngineOptions) if field.name in flags}
    chosen.pop("model", None)
    if "page_size" in chosen:
        chosen["page_size"] = int(chosen["page_size"])
    if flags.get("disk_cache", False):
        cache = flags.get("cache_dir") or default_cache_dir()
        chosen["compile_cache_dir"] = cache / "programs"
        chosen["weight_cache_dir"] = cache / "weights"
    try:
        return EngineOptions(model=model, **chosen)
    except OptionsError as error:
        flag = "--" + error.field.replace("_", "-")
        raise CliError(str(error).replace(error.field, flag, 1)) from None


def default_cache_dir() -> Path:
    """The folder of everything that jaxfold can make again: beside the fetched models.

    Raises:
        CliError: there is no home folder to put it in.
    """
    from jaxfold.checkpoints.catalogue import default_models_dir

    try:
        return default_models_dir().parent
    except RuntimeError:
        raise CliError("no home folder to keep caches in: name one with --cache-dir, or use --no-disk-cache") from None
