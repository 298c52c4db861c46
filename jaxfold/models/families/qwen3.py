"""Qwen3 dense: RMS norms on every query and key head, head_dim of its own."""

from collections.abc import Mapping
from typing import Any

from jaxfold.models.config import DecoderConfig
from jaxfold.models.families.common import plain_config
from jaxfold.models.families.common import refuse

MODEL_TYPES = ("qwen3",)


def config(raw: Mapping[str, Any]) -> DecoderConfig:
    """From a Hugging Face `config.json`."""
    refuse(raw, "use_sliding_window", "partial_rotary_factor")
    bias = bool(raw.get("attention_bias", False))
    return plain_config(raw, attention_bias=bias, output_bias=bias, qk_norm=True)
