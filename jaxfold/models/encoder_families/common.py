"""What the families of encoders share: reading the usual config keys."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxfold.models.config import ConfigError
from jaxfold.models.config import required
from jaxfold.models.encoder import Activation
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import Pooling

_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
)


def plain_encoder(raw: Mapping[str, Any], pooling: Pooling, *, position_offset: int) -> EncoderConfig:
    """An `EncoderConfig` from the keys that every family names alike.

    Raises:
        ConfigError: a key is missing or holds something that this code would run wrongly.
    """
    hidden, heads = required(raw, "hidden_size"), required(raw, "num_attention_heads")
    if hidden % heads:
        raise ConfigError(f"hidden_size {hidden} does not divide into {heads} heads")
    activation = str(raw.get("hidden_act", "gelu"))
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"activation {activation!r} is not supported (known: {', '.join(_ACTIVATIONS)})")
    kind = raw.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ConfigError(f"position_embedding_type {kind!r} is not supported (known: absolute)")
    if raw.get("is_decoder"):
        raise ConfigError("config says is_decoder: this is no encoder")
    positions = required(raw, "max_position_embeddings")
    if positions <= position_offset:
        raise ConfigError(f"max_position_embeddings {positions} leaves no room for a token")
    return EncoderConfig(
        model_type=str(raw["model_type"]),
        vocab_size=required(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=required(raw, "intermediate_size"),
        num_layers=required(raw, "num_hidden_layers"),
        num_heads=heads,
        norm_eps=required({"layer_norm_eps": 1e-12, **raw}, "layer_norm_eps", float),
        max_position=positions - position_offset,
        position_offset=position_offset,
        activation=_ACTIVATIONS[activation],
        pooling=pooling,
    )
