"""The options of a draw, laid over the model's generation_config.json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Final

import click

from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options
from jaxfold.runtime.api import SamplingParams

SAMPLING: Final = "Sampling (what a request does not set itself)"
_FROM_MODEL: Final = "the model's own, else"

sampling_flags: Final[Decorator] = options(
    option(
        "--temperature",
        type=Real(min=0),
        group=SAMPLING,
        show_default=f"{_FROM_MODEL} 1.0",
        help="0 always takes the likeliest token.",
    ),
    option(
        "--top-p",
        type=Real(min=0, max=1, min_open=True),
        group=SAMPLING,
        show_default=f"{_FROM_MODEL} 1.0",
        help="Draw from the likeliest tokens that together have this probability; 1 is off.",
    ),
    option(
        "--top-k",
        type=click.IntRange(min=0),
        group=SAMPLING,
        show_default=f"{_FROM_MODEL} off",
        help="Draw from this many likeliest tokens; 0 is off.",
    ),
    option(
        "--min-p",
        type=Real(min=0, max=1),
        group=SAMPLING,
        show_default=f"{_FROM_MODEL} off",
        help="Leave out tokens less likely than this part of the likeliest; 0 is off.",
    ),
)
"""Adds options that `default_sampling` reads."""

server_sampling_flags: Final[Decorator] = options(
    option(
        "--repeat-penalty",
        type=Real(min=0, min_open=True),
        group=SAMPLING,
        show_default=f"{_FROM_MODEL} off",
        help="Above 1, tokens that the reply holds already become less likely.",
    ),
    option(
        "--repeat-last-n",
        type=click.IntRange(min=-1),
        group=SAMPLING,
        show_default="all",
        help="How many of the last tokens of a reply the penalties look at; -1 is all.",
    ),
    option(
        "--presence-penalty", type=Real(-2, 2), group=SAMPLING, show_default="0", help="Taken once from a seen token."
    ),
    option(
        "--frequency-penalty", type=Real(-2, 2), group=SAMPLING, show_default="0", help="Taken each time it was seen."
    ),
    option(
        "--seed",
        type=click.IntRange(min=0, max=(1 << 64) - 1),
        group=SAMPLING,
        show_default="derived from each prompt",
        help="The seed of a request that names none.",
    ),
    option(
        "--stop",
        multiple=True,
        group=SAMPLING,
        help="A text that ends a reply whose request names none; may be repeated.",
    ),
    option(
        "--sampling-precedence",
        type=click.Choice(["request", "config"]),
        default="request",
        group=SAMPLING,
        help="Who wins where a request and these options differ; with config, --stop is added to a request's own.",
    ),
)
"""More of them, for a server."""

# Option -> field of SamplingParams.
_FLAG_FIELDS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}

# generation_config.json's key -> our field, its smallest and largest value.
_CONFIG_KEYS: Final[Mapping[str, tuple[str, float, float]]] = {
    "temperature": ("temperature", 0, math.inf),
    "top_p": ("top_p", 0, 1),
    "top_k": ("top_k", 0, math.inf),
    "min_p": ("min_p", 0, 1),
    "repetition_penalty": ("repeat_penalty", 0, math.inf),
}


def flag_sampling(flags: Mapping[str, Any]) -> dict[str, float | int]:
    """The fields of SamplingParams that the command line sets."""
    return {field: flags[name] for name, field in _FLAG_FIELDS.items() if flags.get(name) is not None}


def default_sampling(config: Mapping[str, Any], flags: Mapping[str, Any], path: Path) -> SamplingParams:
    """What a request that sets nothing is drawn with. Raises as `chosen_sampling` does."""
    return SamplingParams(**chosen_sampling(config, flags, path))  # type: ignore[arg-type]  # each is one of its fields


def chosen_sampling(config: Mapping[str, Any], flags: Mapping[str, Any], path: Path) -> dict[str, float | int]:
    """The fields that something sets: `flags` over `config` (generation_config.json).

    A model whose config says `do_sample: false` is greedy unless --temperature says otherwise.

    Raises:
        CheckpointError: a value of the config, found beside the checkpoint at `path`, is no number or out of range.
    """
    from jaxfold.checkpoints.base import CheckpointError  # brings numpy, which --help does without

    chosen: dict[str, float | int] = {}
    for key, (field, low, high) in _CONFIG_KEYS.items():
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise CheckpointError(path, f"generation_config.json has {key} = {value!r}, which is out of its range")
        chosen[field] = int(value) if field == "top_k" else float(value)
    if config.get("do_sample") is False:
        chosen["temperature"] = 0.0
    return chosen | flag_sampling(flags)
