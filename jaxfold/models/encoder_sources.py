"""From a checkpoint's tensors to an encoder's weight tree, under Hugging Face's names and under GGUF's."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from jaxfold.models.encoder import EncoderConfig

Read = Callable[[str], np.ndarray]
Place = tuple[str, int | None]

_HF_TOP: Mapping[str, str] = MappingProxyType(
    {
        "embed": "embeddings.word_embeddings.weight",
        "positions": "embeddings.position_embeddings.weight",
        "kind": "embeddings.token_type_embeddings.weight",
        "norm": "embeddings.LayerNorm.weight",
        "norm_bias": "embeddings.LayerNorm.bias",
    }
)
_GGUF_TOP: Mapping[str, str] = MappingProxyType(
    {
        "embed": "token_embd.weight",
        "positions": "position_embd.weight",
        "kind": "token_types.weight",
        "norm": "token_embd_norm.weight",
        "norm_bias": "token_embd_norm.bias",
    }
)
_HF_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "attn_norm": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "mlp_norm": ("output.LayerNorm",),
    }
)
_GGUF_LAYER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "out": ("attn_output",),
        "attn_norm": ("attn_output_norm",),
        "up": ("ffn_up",),
        "down": ("ffn_down",),
        "mlp_norm": ("layer_output_norm",),
    }
)
_PREFIXES = ("", "bert.", "roberta.")
_GGUF_MARK = "token_embd.weight"


@dataclass(frozen=True)
class Source:
    """One leaf: the tensors joined on axis 0 to make it; `first_row` takes the first row of a table."""

    names: tuple[str, ...]
    first_row: bool = False

    def build(self, read: Read) -> np.ndarray:
        arrays = [read(name) for name in self.names]
        joined: np.ndarray = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=0)
        if self.first_row:
            row: np.ndarray = joined[0] if joined.ndim == 2 else joined
            return row
        return joined


def encoder_sources(cfg: EncoderConfig, names: Collection[str]) -> Iterator[tuple[Place, Source]]:
    """`((field, layer or None), source)` for every leaf of `declare_encoder(cfg)`.

    Args:
        names: the checkpoint's tensors; they tell which spelling it uses.
    """
    gguf = _GGUF_MARK in names
    prefix = "" if gguf else next((p for p in _PREFIXES if p + _HF_TOP["embed"] in names), "")
    for field, name in (_GGUF_TOP if gguf else _HF_TOP).items():
        yield (field, None), Source((prefix + name,), first_row=field == "kind")
    for i in range(cfg.num_layers):
        base = f"blk.{i}" if gguf else f"{prefix}encoder.layer.{i}"
        for field, modules in (_GGUF_LAYER if gguf else _HF_LAYER).items():
            yield (field, i), Source(tuple(f"{base}.{module}.weight" for module in modules))
            yield (f"{field}_bias", i), Source(tuple(f"{base}.{module}.bias" for module in modules))
