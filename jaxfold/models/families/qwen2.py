"""Qwen2 and Qwen2.5 dense: biases on q, k and v."""

from collections.abc import Mapping
from typing import Any

from jaxfold.models.config import DecoderConfig
from jaxfold.models.families.common import plain_config
from jaxfold.models.families.common import refuse

MODEL_TYPES = ("qwen2",)


def config(raw: Mapping[str, Any]) -> DecoderConfig:
    """From a Hugging Face `config.json`."""
    refuse(raw, "use_sliding_window", "partial_rotary_factor")
    return plain_config(raw, attention_bias=True)
