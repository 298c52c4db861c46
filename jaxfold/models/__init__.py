"""Models as pure functions over a weight pytree: config, declared weights, one step over a plan."""

from jaxfold.models.config import ConfigError
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import declare
from jaxfold.models.decoder import forward
from jaxfold.models.decoder import logits
from jaxfold.models.decoder import new_cache
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan

__all__ = [
    "Cache",
    "ConfigError",
    "DecoderConfig",
    "Part",
    "Plan",
    "Weights",
    "declare",
    "forward",
    "logits",
    "new_cache",
]
