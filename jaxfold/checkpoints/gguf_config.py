"""GGUF metadata as a Hugging Face `config.json` would say it, and GGUF tensor names as Hugging Face names."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.gguf_header import GgufHeader
from jaxfold.checkpoints.gguf_header import GgufTensor

# general.architecture -> model_type of the families whose settings are translated in full.
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
# Encoders keep their GGUF names: the table of names below is that of decoders.
ENCODERS = frozenset({"bert"})
ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER_NAMES = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_MAX_SIZE = 1 << 31
_YARN_FIELDS = {
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_ext_factor": "extrapolation_factor",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
}
# llama.cpp keeps Gemma 3's attention scale in code: only the 27B (62 layers) scales by hidden size over heads.
_GEMMA3_27B_LAYERS = 62


class Metadata:
    """Typed look-ups in one file's metadata. Keys are given without the architecture's prefix."""

    def __init__(self, header: GgufHeader) -> None:
        self.path = header.path
        self.fields = header.fields
        architecture = header.fields.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise CheckpointError(self.path, "names no architecture (metadata key 'general.architecture')")
        self.architecture = architecture

    def get(self, key: str) -> Any:
        """The raw value, one number for an array that repeats it, or None."""
        value = self.fields.get(f"{self.architecture}.{key}")
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            return value[0].item()
        return value

    def size(self, key: str) -> int | None:
        """A whole number from 1 to 2^31 - 1, or None where the key is missing."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MAX_SIZE:
            self._refuse(key, "one positive whole number", value)
        return int(value)

    def needed_size(self, key: str) -> int:
        """As `size`, but the key must be there."""
        value = self.size(key)
        if value is None:
            raise CheckpointError(self.path, f"lacks the metadata key '{self.architecture}.{key}'")
        return value

    def number(self, key: str) -> float | None:
        """A finite number above 0 (shortest decimal form of a float32), or None where the key is missing."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self._refuse(key, "a positive number", value)
        return float(str(np.float32(value)))

    def _refuse(self, key: str, wanted: str, value: Any) -> None:
        shown = repr(value) if isinstance(value, int | float) else type(value).__name__
        raise CheckpointError(self.path, f"metadata key '{self.architecture}.{key}' should be {wanted}, not {shown}")


def hf_config(header: GgufHeader, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """What `config.json` would hold. An architecture that is not known gets its `model_type` and plain sizes only.

    Args:
        header: the file with the metadata.
        tensors: the tensors of all parts, by GGUF name.

    Raises:
        CheckpointError: a needed key is missing or has a value that cannot be.
    """
    keys = Metadata(header)
    if keys.architecture in ENCODERS:
        return _encoder(keys, tensors)
    if keys.architecture not in MODEL_TYPES:
        return {"model_type": keys.architecture}
    layers = keys.needed_size("block_count")
    if layers > len(tensors):
        raise CheckpointError(header.path, f"claims {layers} layers but holds {len(tensors)} tensors")
    hidden = keys.needed_size("embedding_length")
    heads = keys.needed_size("attention.head_count")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(header.path, "holds no embedding matrix", "token_embd.weight")
    gemma = keys.architecture == "gemma3"
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES[keys.architecture],
        "hidden_size": hidden,
        "intermediate_size": keys.needed_size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv") or heads,
        "head_dim": keys.size("attention.key_length") or max(1, hidden // heads),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon") or 1e-6,
        "rope_theta": keys.number("rope.freq_base") or (1e6 if gemma else 1e4),
        "rope_scaling": _rope_scaling(keys),
        "max_position_embeddings": keys.needed_size("context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }
    config |= _gemma3(keys, config) if gemma else {"hidden_act": "silu"}
    _add_optional(keys, config)
    if ROPE_FACTORS in tensors:
        config["rope_freq_factors"] = _rope_factors(header, tensors[ROPE_FACTORS], config["head_dim"])
    return config


def _encoder(keys: Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """An encoder's settings. RoBERTa files are of the architecture "bert" too: their position tables begin at 0."""
    shapes = {name: tensors[name].shape for name in ("token_embd.weight", "position_embd.weight") if name in tensors}
    for name in ("token_embd.weight", "position_embd.weight"):
        if len(shapes.get(name, ())) != 2:
            raise CheckpointError(keys.path, "is missing, or no matrix", name)
    return {
        "model_type": keys.architecture,
        "hidden_size": keys.needed_size("embedding_length"),
        "intermediate_size": keys.needed_size("feed_forward_length"),
        "num_hidden_layers": keys.needed_size("block_count"),
        "num_attention_heads": keys.needed_size("attention.head_count"),
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon") or 1e-12,
        "max_position_embeddings": shapes["position_embd.weight"][0],
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_act": "gelu",
        "gguf_pooling_type": keys.get("pooling_type"),
    }


def _rope_scaling(keys: Metadata) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type")
    factor = keys.number("rope.scaling.factor")
    if kind is None and factor is None:
        factor = keys.number("rope.scale_linear")  # how older files say it
    if kind == "none" or (kind is None and factor in (None, 1.0)):
        return None
    scaling: dict[str, Any] = {"rope_type": kind or "linear", "factor": factor or 1.0}
    original = keys.size("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    if kind == "yarn":
        for key, name in _YARN_FIELDS.items():
            value = keys.number(key)
            if value is not None:
                scaling[name] = value
    return scaling


def _gemma3(keys: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    scale = keys.number("attention.scale")
    if scale is not None:
        scalar = scale**-2.0
    elif config["num_hidden_layers"] == _GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] / config["num_attention_heads"]
    else:
        scalar = float(config["head_dim"])
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": keys.number("rope.freq_base_swa") or 1e4,
        "sliding_window_pattern": 6,
    }


def _add_optional(keys: Metadata, config: dict[str, Any]) -> None:
    """Settings that only some files carry; a family that cannot honour one refuses it by name."""
    window = keys.size("attention.sliding_window")
    if window is not None:
        config["sliding_window"] = window
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        value = keys.number(key)
        if value is not None:
            config[key] = value
    rotated = keys.size("rope.dimension_count")
    if rotated is not None and rotated != config["head_dim"]:
        config["partial_rotary_factor"] = rotated / config["head_dim"]
    experts = keys.get("expert_count")
    if experts:
        # A mixture of experts is stored under its dense family's name; the dense code must not take it.
        config["num_local_experts"] = keys.needed_size("expert_count")
        config["model_type"] = f"{keys.architecture}_moe"
    for name in ("bos", "eos"):
        token = keys.fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int) and 0 <= token < config["vocab_size"]:
            config[f"{name}_token_id"] = token


def _rope_factors(header: GgufHeader, tensor: GgufTensor, head_dim: int) -> list[float]:
    """Divisors of the rotary frequencies, [head_dim / 2], as llama3-style scaling stores them."""
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        reason = f"should be F32 [{head_dim // 2}], not {tensor.type.name} {list(tensor.shape)}"
        raise CheckpointError(header.path, reason, tensor.name)
    values = np.frombuffer(header.data, "<f4", tensor.shape[0], tensor.offset)
    if not (np.isfinite(values) & (values > 0)).all():
        raise CheckpointError(header.path, "should hold positive numbers", tensor.name)
    return [float(value) for value in values]


def hf_names(architecture: str, layers: int) -> dict[str, str]:
    """GGUF name -> Hugging Face name, both without ".weight" or ".bias". Empty for an architecture without a map."""
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}.get(architecture)
    if known is None or architecture in ENCODERS:
        return {}
    names = get_tensor_name_map(known, layers)
    wanted = [*_TOP_NAMES, *(f"model.layers.{layer}.{name}" for layer in range(layers) for name in _LAYER_NAMES)]
    return {mapped: name for name in wanted if (mapped := names.get_name(name)) is not None}
