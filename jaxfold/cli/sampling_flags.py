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
"""Adds the options that `default_sampling` reads."""

# generation_config.json's key -> our field, its smallest and largest value.
_CONFIG_KEYS: Final[Mapping[str, tuple[str, float, float]]] = {
    "temperature": ("temperature", 0, math.inf),
    "top_p": ("top_p", 0, 1),
    "top_k": ("top_k", 0, math.inf),
    "min_p": ("min_p", 0, 1),
    "repetition_penalty": ("repeat_penalty", 0, math.inf),
}


def default_sampling(config: Mapping[str, Any], flags: Mapping[str, Any], path: Path) -> SamplingParams:
    """What a request that sets nothing is drawn with: `flags` over `config` (generation_config.json) over off.

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
    for name in ("temperature", "top_p", "top_k", "min_p"):
        if flags.get(name) is not None:
            chosen[name] = flags[name]
    return SamplingParams(**chosen)  # type: ignore[arg-type]  # each key is one of its fields
