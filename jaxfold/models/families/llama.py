"""Llama and the many checkpoints that follow its layout (SmolLM2, Llama 2 / 3.x, Mistral without sliding window)."""

from collections.abc import Mapping
from typing import Any

from jaxfold.models.config import DecoderConfig
from jaxfold.models.families.common import plain_config
from jaxfold.models.families.common import refuse

MODEL_TYPES = ("llama",)


def config(raw: Mapping[str, Any]) -> DecoderConfig:
    """From a Hugging Face `config.json`."""
    refuse(raw, "mlp_bias", "partial_rotary_factor")
    bias = bool(raw.get("attention_bias", False))
    return plain_config(raw, attention_bias=bias, output_bias=bias)
