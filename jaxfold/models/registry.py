"""Families by `model_type`: modules of `jaxfold.models.families` that declare `MODEL_TYPES` are found by scanning."""

import importlib
import pkgutil
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jaxfold.models.families as families
from jaxfold.models.config import ConfigError
from jaxfold.models.config import DecoderConfig

_DEFAULT_NORMS: Mapping[str, str] = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


@dataclass(frozen=True)
class Family:
    """How to read one family's checkpoints. `norm_names` maps a `Layer` field to the tensor's module name."""

    model_types: tuple[str, ...]
    config: Callable[[Mapping[str, Any]], DecoderConfig]
    norm_names: Mapping[str, str]
    norm_offset: float


def known_types() -> tuple[str, ...]:
    """Every `model_type` that some family serves, sorted."""
    return tuple(sorted(t for module in _modules() for t in module.MODEL_TYPES))


def family_of(model_type: str) -> Family:
    """The family that serves `model_type`.

    Raises:
        ConfigError: there is none; the message lists what is known.
    """
    for module in _modules():
        if model_type in module.MODEL_TYPES:
            return Family(
                model_types=module.MODEL_TYPES,
                config=module.config,
                norm_names=getattr(module, "NORM_NAMES", _DEFAULT_NORMS),
                norm_offset=getattr(module, "NORM_OFFSET", 0.0),
            )
    raise ConfigError(f"architecture {model_type!r} is not supported (known: {', '.join(known_types())})")


def _modules() -> list[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(families.__path__))
    loaded = [importlib.import_module(f"{families.__name__}.{name}") for name in names]
    return [module for module in loaded if hasattr(module, "MODEL_TYPES")]
