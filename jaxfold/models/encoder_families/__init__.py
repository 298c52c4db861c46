"""One module a family of encoders: which `model_type`s it serves, and how its config.json is read."""

from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxfold.models.config import ConfigError
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import Pooling
from jaxfold.models.encoder_families import bert
from jaxfold.models.encoder_families import roberta

_CONFIGS: Mapping[str, Callable[[Mapping[str, Any], Pooling], EncoderConfig]] = MappingProxyType(
    {model_type: family.config for family in (bert, roberta) for model_type in family.MODEL_TYPES}
)

ENCODER_TYPES: tuple[str, ...] = tuple(sorted(_CONFIGS))
"""Every `model_type` that some family here serves."""


def encoder_config(raw: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """From a Hugging Face `config.json`, or its equivalent made from GGUF metadata.

    Raises:
        ConfigError: no family serves it, a key is missing, or it asks for what this code would run wrongly.
    """
    model_type = str(raw.get("model_type", ""))
    if model_type not in _CONFIGS:
        raise ConfigError(f"architecture {model_type!r} is no supported encoder (known: {', '.join(ENCODER_TYPES)})")
    return _CONFIGS[model_type](raw, pooling)
