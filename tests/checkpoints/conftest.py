"""Makers of tiny checkpoints: the gguf library's writer and safetensors' own, so that the readers meet real files."""

import json
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import save_file

HIDDEN = 64
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
FEED_FORWARD = 96
VOCAB = 12
LAYERS = 2

WriteGguf = Callable[..., Path]


def raw_blocks(rng: np.random.Generator, kind: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Random bytes in the shape of `rows` rows of blocks, uint8 [rows, row bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (rows, columns // block * size), dtype=np.uint8)


def tiny_tensors(
    rng: np.random.Generator, *, tied: bool = False, heads: int = HEADS, kv: int = KV_HEADS
) -> dict[str, Any]:
    """Float32 weights of a small llama under GGUF names."""
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (heads * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, heads * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def tiny_fields(architecture: str, *, heads: int = HEADS, kv: int = KV_HEADS) -> dict[str, Any]:
    """Metadata of a small model and of a vocabulary of 12 tokens."""
    return {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FEED_FORWARD,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv,
        f"{architecture}.attention.key_length": HEAD_DIM,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghi"],
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 9],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }


def write_gguf_file(
    path: Path,
    architecture: str,
    tensors: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    split_max_tensors: int = 0,
) -> Path:
    """A GGUF file by the gguf library. A tensor is a float32 array, or (raw bytes, quantisation type).

    Metadata: bool, int (uint32), float (float32), str and lists of these; None leaves the key out.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def tiny_gguf(tmp_path: Path, rng: np.random.Generator) -> WriteGguf:
    """Writes a small model: `tiny_gguf("llama", fields={...}, tensors={...})`; given entries replace or add."""

    def write(
        architecture: str = "llama",
        *,
        name: str = "tiny.gguf",
        tensors: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        tied: bool = False,
        heads: int = HEADS,
        kv: int = KV_HEADS,
        split_max_tensors: int = 0,
    ) -> Path:
        all_tensors = tiny_tensors(rng, tied=tied, heads=heads, kv=kv) | dict(tensors or {})
        all_fields = tiny_fields(architecture, heads=heads, kv=kv) | dict(fields or {})
        path = tmp_path / name
        return write_gguf_file(path, architecture, all_tensors, all_fields, split_max_tensors=split_max_tensors)

    return write


@pytest.fixture
def random_blocks(rng: np.random.Generator) -> Callable[[GGMLQuantizationType, int, int], np.ndarray]:
    """`raw_blocks` with the test's generator."""
    return lambda kind, rows, columns: raw_blocks(rng, kind, rows, columns)


TINY_CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": 12,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


@pytest.fixture
def tiny_hf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a Hugging Face directory: JSON objects or bytes by file name, and model.safetensors unless None."""

    def write(tensors: Mapping[str, np.ndarray] | None, /, **files: Any) -> Path:
        directory = tmp_path / "hf"
        directory.mkdir(exist_ok=True)
        for name, content in ({"config.json": TINY_CONFIG} | files.pop("files", {})).items():
            if content is not None:
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                (directory / name).write_bytes(raw)
        if tensors is not None:
            save_file(dict(tensors), directory / "model.safetensors")
        return directory

    return write
