"""From a checkpoint's tensors to the weight tree: which names make up each leaf, and how they are joined."""

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxfold.models.config import DecoderConfig
from jaxfold.models.registry import Family

Read = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Source:
    """One leaf: the tensors concatenated on axis 0 to make it, and what is added (gemma's norm offset)."""

    names: tuple[str, ...]
    offset: float = 0.0

    def build(self, read: Read) -> np.ndarray:
        arrays = [read(name) for name in self.names]
        joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=0)
        return joined.astype(np.float32) + np.float32(self.offset) if self.offset else joined


def sources(cfg: DecoderConfig, family: Family) -> Iterator[tuple[tuple[str, int | None], Source]]:
    """`((field, layer or None), source)` for every leaf that `decoder.declare(cfg)` has."""
    offset = family.norm_offset
    yield ("embed", None), Source(("model.embed_tokens.weight",))
    yield ("final_norm", None), Source(("model.norm.weight",), offset)
    if not cfg.tied_head:
        yield ("head", None), Source(("lm_head.weight",))
    for i in range(cfg.num_layers):
        base = f"model.layers.{i}"
        attention, mlp = f"{base}.self_attn", f"{base}.mlp"
        for field, module in family.norm_names.items():
            yield (field, i), Source((f"{base}.{module}.weight",), offset)
        yield ("qkv", i), Source(tuple(f"{attention}.{p}_proj.weight" for p in "qkv"))
        yield ("out", i), Source((f"{attention}.o_proj.weight",))
        yield ("gate_up", i), Source((f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"))
        yield ("down", i), Source((f"{mlp}.down_proj.weight",))
        if cfg.attention_bias:
            yield ("qkv_bias", i), Source(tuple(f"{attention}.{p}_proj.bias" for p in "qkv"))
        if cfg.output_bias:
            yield ("out_bias", i), Source((f"{attention}.o_proj.bias",))
        if cfg.qk_norm:
            yield ("q_norm", i), Source((f"{attention}.q_norm.weight",), offset)
            yield ("k_norm", i), Source((f"{attention}.k_norm.weight",), offset)
