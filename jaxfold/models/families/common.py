"""What the dense families share: reading the usual config keys."""

from collections.abc import Mapping
from typing import Any
from typing import Literal

from jaxfold.models.config import FULL
from jaxfold.models.config import WINDOW
from jaxfold.models.config import ConfigError
from jaxfold.models.config import DecoderConfig
from jaxfold.models.config import RopeConfig
from jaxfold.models.config import required
from jaxfold.models.layers.rope import scaling_factors

_ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def plain_config(
    raw: Mapping[str, Any],
    *,
    default_tied: bool = False,
    layer_groups: tuple[str, ...] | None = None,
    local_rope: RopeConfig | None = None,
    **traits: Any,
) -> DecoderConfig:
    """A `DecoderConfig` from the keys that every family names alike; `traits` are the family's own fields.

    Raises:
        ConfigError: a key is missing or holds something that this code would run wrongly.
    """
    layers, heads = required(raw, "num_hidden_layers"), required(raw, "num_attention_heads")
    hidden = required(raw, "hidden_size")
    kv_heads = required(raw, "num_key_value_heads") if raw.get("num_key_value_heads") else heads
    head_dim = required(raw, "head_dim") if raw.get("head_dim") else hidden // heads
    if heads % kv_heads:
        raise ConfigError(f"{heads} attention heads do not divide into {kv_heads} key-value heads")
    if head_dim % 2:
        raise ConfigError(f"head_dim {head_dim} is odd: rotary embedding needs pairs")
    activation = str(raw.get("hidden_act", "silu"))
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"activation {activation!r} is not supported (known: {', '.join(_ACTIVATIONS)})")
    groups = layer_groups or (FULL,) * layers
    theta, scaling = _global_rope(raw)
    rope = [(FULL, RopeConfig(theta, scaling_factors({**raw, "rope_scaling": scaling}, theta, head_dim)))]
    if local_rope is not None:
        rope.append((WINDOW, local_rope))
    return DecoderConfig(
        model_type=str(raw.get("model_type", "")),
        vocab_size=required(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=required(raw, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=required(raw, "rms_norm_eps", float),
        max_position=required(raw, "max_position_embeddings"),
        rope=tuple(rope),
        layer_groups=groups,
        tied_head=bool(raw.get("tie_word_embeddings", default_tied)),
        activation=_ACTIVATIONS[activation],
        **traits,
    )


def _global_rope(raw: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Base and scaling of the global rotary embedding: `rope_theta` + `rope_scaling`, or newer `rope_parameters`."""
    parameters = raw.get("rope_parameters")
    if isinstance(parameters, Mapping):
        nested = parameters.get("full_attention", parameters)
        if isinstance(nested, Mapping) and "rope_theta" in nested:
            return float(nested["rope_theta"]), nested
    scaling = raw.get("rope_scaling")
    return float(raw.get("rope_theta") or 10000.0), scaling if isinstance(scaling, Mapping) else None


def refuse(raw: Mapping[str, Any], *keys: str) -> None:
    """Refuse settings that are switched on and not built: running without them would change the text in silence.

    Raises:
        ConfigError: naming the key.
    """
    for key in keys:
        value = raw.get(key)
        # A partial rotary factor of 1 rotates everything, as this code does.
        if value and not (key == "partial_rotary_factor" and value == 1):
            raise ConfigError(f"config has {key} = {value!r}, which is not supported for this family")
