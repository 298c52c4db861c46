"""BERT and the encoders that follow its layout (MiniLM, BGE, E5, GTE base, Arctic Embed v1)."""

from collections.abc import Mapping
from typing import Any

from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import Pooling
from jaxfold.models.encoder_families.common import plain_encoder

MODEL_TYPES = ("bert",)


def config(raw: Mapping[str, Any], pooling: Pooling) -> EncoderConfig:
    """From a Hugging Face `config.json`; positions count from 0."""
    return plain_encoder(raw, pooling, position_offset=0)
