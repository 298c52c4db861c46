"""Gemma 3 text: sliding-window layers between global ones, norms on both sides of a block, scaled embeddings."""

import math
from collections.abc import Mapping
from typing import Any

from jaxfold.models.config import FULL
from jaxfold.models.config import WINDOW
from jaxfold.models.config import ConfigError
from jaxfold.models.config import DecoderConfig
from jaxfold.models.config import RopeConfig
from jaxfold.models.config import required
from jaxfold.models.families.common import plain_config
from jaxfold.models.families.common import refuse

MODEL_TYPES = ("gemma3_text", "gemma3")
NORM_OFFSET = 1.0  # weights are stored as w and multiply as 1 + w
NORM_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


def config(raw: Mapping[str, Any]) -> DecoderConfig:
    """From a Hugging Face `config.json` (the text part of it)."""
    refuse(raw, "attention_bias", "partial_rotary_factor", "use_bidirectional_attention")
    layers = required(raw, "num_hidden_layers")
    groups = _groups(raw, layers)
    hidden = required(raw, "hidden_size")
    head_dim = required(raw, "head_dim")
    activation = raw.get("hidden_activation", raw.get("hidden_act", "gelu_pytorch_tanh"))
    if activation not in ("gelu_pytorch_tanh", "gelu_tanh"):
        raise ConfigError(f"gemma3 activation {activation!r} is not supported")
    local = RopeConfig(float(_rope_value(raw, "sliding_attention", 10000.0)), (1.0,) * (head_dim // 2))
    return plain_config(
        {**raw, "hidden_act": "gelu_pytorch_tanh"},
        default_tied=True,
        qk_norm=True,
        residual_norms=True,
        layer_groups=groups,
        window=required(raw, "sliding_window") if WINDOW in groups else None,
        local_rope=local if WINDOW in groups else None,
        attention_scale=float(raw.get("query_pre_attn_scalar") or head_dim) ** -0.5,
        embed_scale=math.sqrt(hidden),
        attention_soft_cap=raw.get("attn_logit_softcapping"),
        logit_soft_cap=raw.get("final_logit_softcapping"),
    )


def _groups(raw: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Layer kinds from `layer_types`, else from `sliding_window_pattern`: every pattern-th layer is global."""
    kinds = raw.get("layer_types")
    if kinds:
        if len(kinds) != layers:
            raise ConfigError(f"layer_types has {len(kinds)} entries for {layers} layers")
        return tuple(WINDOW if kind == "sliding_attention" else FULL for kind in kinds)
    pattern = int(raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or 6)
    return tuple(FULL if (i + 1) % pattern == 0 else WINDOW for i in range(layers))


def _rope_value(raw: Mapping[str, Any], kind: str, default: float) -> float:
    """Base of the local rotary embedding: `rope_local_base_freq`, or the per-kind `rope_parameters` of newer files."""
    parameters = raw.get("rope_parameters") or {}
    nested = parameters.get(kind) if isinstance(parameters, Mapping) else None
    if isinstance(nested, Mapping) and "rope_theta" in nested:
        return float(nested["rope_theta"])
    return float(raw.get("rope_local_base_freq") or default)
