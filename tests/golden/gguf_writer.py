"""Writes the tiny Hugging Face checkpoints as GGUF files with llama.cpp's conventions, so that readers can be compared.

The conventions: llama's q and k rows are permuted (rotary pairs side by side), Gemma's norms hold weight + 1,
vectors stay float32, and llama3 rope scaling is a tensor of per-frequency divisors instead of metadata.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
Q8_0_BLOCK = 32


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the directory's safetensors files by name, as float32."""
    weights: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= {name: np.asarray(value, np.float32) for name, value in load_file(file).items()}
    return weights


def round_trip(weight: np.ndarray, stored: str) -> np.ndarray:
    """float32 values of `weight` after storage as `stored` ("F32", "F16" or "Q8_0")."""
    kind = storage(weight, stored)
    return gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind).astype(np.float32)


def storage(weight: np.ndarray, stored: str) -> gguf.GGMLQuantizationType:
    """The type that llama.cpp would use: vectors stay F32, rows that do not fill Q8_0 blocks become F16."""
    if weight.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    if stored == "Q8_0" and weight.shape[-1] % Q8_0_BLOCK:
        return gguf.GGMLQuantizationType.F16
    return gguf.GGMLQuantizationType[stored]


def write_gguf(folder: Path, path: Path, stored: str = "F32") -> None:
    """Write the Hugging Face directory `folder` as the GGUF file `path`, matrices stored as `stored`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    add_settings(writer, config)
    add_vocabulary(writer, folder, config)
    add_tensors(writer, config, read_weights(folder), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_settings(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(config["head_dim"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: Mapping[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    control = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    eos = config["eos_token_id"]
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def add_tensors(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], weights: Mapping[str, np.ndarray], stored: str
) -> None:
    family = config["model_type"]
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[ARCHITECTURES[family]]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, weight in sorted(weights.items()):
        if family == "llama" and ".q_proj." in name:
            weight = permute_rotary(weight, config["num_attention_heads"])
        if family == "llama" and ".k_proj." in name:
            weight = permute_rotary(weight, config["num_key_value_heads"])
        if family == "gemma3_text" and name.endswith("norm.weight"):
            weight = weight + np.float32(1)
        kind = storage(weight, stored)
        data = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, f"llama.cpp has no name for {name}"
        writer.add_tensor(stored_name, data, raw_dtype=kind)
    divisors = llama3_divisors(config)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)


def permute_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """Each head's rows from two halves (the Hugging Face order) to neighbouring pairs (llama.cpp's)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def llama3_divisors(config: Mapping[str, Any]) -> np.ndarray | None:
    """What each rotary frequency is divided by under llama3 scaling: float32[head_dim / 2]."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns_over = scaling["original_max_position_embeddings"]
    dim = config["head_dim"]
    divisors = []
    for i in range(0, dim, 2):
        turns = turns_over / (2 * math.pi * config["rope_theta"] ** (i / dim))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, np.float32)
