"""RoBERTa and XLM-RoBERTa (Arctic Embed L v2.0, BGE-M3, multilingual E5): BERT whose positions count from padding."""

from collections.abc import Mapping
from typing import Any

from jaxfold.models.config import ConfigError
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import Pooling
from jaxfold.models.encoder_families.common import plain_encoder

MODEL_TYPES = ("roberta", "xlm-roberta")


def config(raw: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """From a Hugging Face `config.json`; the first position has the row after that of the padding id."""
    padding = raw.get("pad_token_id", 1)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ConfigError(f"config has no usable 'pad_token_id' (found {padding!r})")
    return plain_encoder(raw, pooling, position_offset=padding + 1)
