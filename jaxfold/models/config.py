"""The frozen settings of a dense decoder: what config.json or GGUF metadata say, once, under one set of names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal


class ConfigError(Exception):
    """Settings that no family here can run. The message is one sentence."""


FULL = "full"
WINDOW = "window"


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one cache group. `factors` divide the inverse frequencies; they hold any scaling."""

    theta: float
    factors: tuple[float, ...]  # head_dim / 2 numbers, all 1.0 without scaling


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer with grouped-query attention and a gated MLP (llama, qwen2, qwen3, gemma3).

    `layer_groups[i]` names the cache group of layer i: "full", or "window" for sliding-window attention.
    `compute_dtype` is what products take in; norms, softmax and the residual stream are float32 always.
    `residual_norms` adds norms after attention and after the MLP (gemma). Norm weights are stored as they multiply:
    gemma's +1 is added at load.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    rope: tuple[tuple[str, RopeConfig], ...]
    layer_groups: tuple[str, ...]
    window: int | None = None
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    residual_norms: bool = False
    tied_head: bool = True
    embed_scale: float = 1.0
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5

    @property
    def groups(self) -> Mapping[str, int | None]:
        """Cache groups in use and their window in tokens (None: every key)."""
        used = sorted(set(self.layer_groups))
        return {name: self.window if name == WINDOW else None for name in used}

    def rope_of(self, group: str) -> RopeConfig:
        return dict(self.rope)[group]

    def kv_bytes_per_token(self, itemsize: int) -> Mapping[str, int]:
        """Bytes that one token takes in each cache group."""
        row = 2 * self.num_kv_heads * self.head_dim * itemsize
        return {group: row * self.layer_groups.count(group) for group in self.groups}


def required(config: Mapping[str, Any], key: str, kind: type = int) -> Any:
    """`config[key]` as `kind`, or ConfigError naming the key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"config has no usable {key!r} (found {value!r})")
    if kind is int and (value != int(value) or value <= 0):
        raise ConfigError(f"config {key!r} must be a positive integer, found {value!r}")
    return kind(value)
