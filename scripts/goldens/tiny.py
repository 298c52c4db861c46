"""Tiny random checkpoints as Hugging Face directories, with the outputs that transformers computes from them."""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoConfig
from transformers import AutoModelForCausalLM

from goldens.tiny_tokenizer import write_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "golden"))
from gguf_writer import write_gguf

NEW_TOKENS = 24
PROMPT_LENGTHS = (41, 38)
NORM_GRID = 4096  # Gemma stores norm - 1; on this grid adding 1 for a GGUF file is exact
PROMPTS = (
    "The keeper wrote down the wind, the oil and the boats, and then 3 or 4 things that surprised him.",
    "for year in range(1871, 1931):\n    print(year, counts[year] + 1)  # café, 灯台\n",
)

COMMON: dict[str, Any] = {
    "vocab_size": 288,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
}

LLAMA: dict[str, Any] = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class TinyModel:
    """One checkpoint to make. `variants` are other config.json files for the same weights."""

    name: str
    seed: int
    config: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shards: int = 1
    zero_centred_norms: bool = False
    gain: float = 1.6
    embedding: float = 0.35


MODELS: tuple[TinyModel, ...] = (
    TinyModel(
        name="llama",
        seed=1491,
        config=LLAMA,
        variants={
            "rope_llama3": {
                "rope_theta": 500000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            },
            "rope_linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
        },
    ),
    TinyModel(
        name="llama_bias",
        seed=202,
        config=LLAMA
        | {
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eos_token_id": [2, 0],
        },
    ),
    TinyModel(
        name="qwen2",
        seed=133,
        shards=3,
        config=COMMON
        | {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 112,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 7,
            "num_key_value_heads": 1,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    TinyModel(
        name="qwen3",
        seed=24,
        config=COMMON
        | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "attention_bias": False,
            "sliding_window": None,
            "use_sliding_window": False,
            "max_window_layers": 2,
            "tie_word_embeddings": False,
        },
    ),
    TinyModel(
        name="gemma3",
        seed=235,
        zero_centred_norms=True,
        embedding=0.15,
        config=COMMON
        | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 6,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 24,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 18,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window": 8,
            "sliding_window_pattern": 6,
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": True,
        },
    ),
)


def make_tiny(out: Path, corpus: Path) -> None:
    """Write every tiny checkpoint and its outputs under `out`, which is emptied first."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    shutil.rmtree(out, ignore_errors=True)
    for model in MODELS:
        folder = out / model.name
        folder.mkdir(parents=True)
        write_json(folder / "config.json", dict(model.config))
        write_json(
            folder / "generation_config.json",
            {key: model.config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        )
        write_tokenizer(folder, corpus, model.config["vocab_size"])
        write_weights(folder, model)
        write_json(folder / "config.saved_by_v5.json", saved_by_v5(folder))
        prompts = prompt_ids(folder)
        if model.config["torch_dtype"] == "float32":
            check_gguf(folder, prompts[0])
        save_numpy(outputs(folder, prompts), out / f"{model.name}.golden.safetensors")
        for variant, changes in model.variants.items():
            base = (folder / "config.json").read_text()
            write_json(folder / f"config.{variant}.json", dict(model.config) | dict(changes))
            shutil.copy(folder / f"config.{variant}.json", folder / "config.json")
            save_numpy(outputs(folder, prompts), out / f"{model.name}.{variant}.golden.safetensors")
            (folder / "config.json").write_text(base)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def saved_by_v5(folder: Path) -> dict[str, Any]:
    """The same settings in the words of transformers 5 (`rope_parameters`, `dtype`, `layer_types`)."""
    with tempfile.TemporaryDirectory() as saved:
        AutoConfig.from_pretrained(folder).save_pretrained(saved)
        return json.loads((Path(saved) / "config.json").read_text())


def write_weights(folder: Path, model: TinyModel) -> None:
    """Random weights under transformers' own parameter names, in one file or in shards with an index."""
    config = AutoConfig.from_pretrained(folder)
    named = sorted(AutoModelForCausalLM.from_config(config).named_parameters())
    dtype = getattr(torch, model.config["torch_dtype"])
    generator = torch.Generator().manual_seed(model.seed)
    tensors = {name: draw(name, p.shape, model, generator).to(dtype).contiguous() for name, p in named}
    if model.shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(model.shards):
        part = {name: tensors[name] for name in list(tensors)[shard :: model.shards]}
        file = f"model-{shard + 1:05d}-of-{model.shards:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def draw(name: str, shape: torch.Size, model: TinyModel, generator: torch.Generator) -> torch.Tensor:
    """Values large enough that logits spread by several units and that a forgotten bias or norm shows."""
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        # Gemma's norm of layer outputs and of q and k are doubled: else a token's own embedding outweighs its context.
        doubled = any(part in name for part in ("post_", "q_norm", "k_norm"))
        centre = float(doubled) if model.zero_centred_norms else 1.0
        return torch.round((centre + 0.3 * noise) * NORM_GRID) / NORM_GRID
    if name.endswith(".bias"):
        return 0.3 * noise
    if "embed_tokens" in name:
        return model.embedding * noise
    if "lm_head" in name:
        return 2 * model.gain * noise / shape[-1] ** 0.5
    return model.gain * noise / shape[-1] ** 0.5


def prompt_ids(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids[:n] for text, n in zip(PROMPTS, PROMPT_LENGTHS, strict=True)]
    assert [len(i) for i in ids] == list(PROMPT_LENGTHS), [len(i) for i in ids]
    return ids


@torch.no_grad()
def check_gguf(folder: Path, prompt: list[int]) -> None:
    """transformers' own reader must get the same logits from the GGUF file that the tests write."""
    with tempfile.TemporaryDirectory() as place:
        write_gguf(folder, Path(place) / "model.gguf")
        config = AutoConfig.from_pretrained(folder)  # its GGUF reader drops rope scaling and some sizes
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        reread = AutoModelForCausalLM.from_pretrained(place, gguf_file="model.gguf", config=config, **options)
        direct = AutoModelForCausalLM.from_pretrained(folder, **options)
        ids = torch.tensor([prompt])
        assert torch.equal(reread.eval()(ids).logits, direct.eval()(ids).logits), folder.name


@torch.no_grad()
def outputs(folder: Path, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """For each prompt: ids int32[n], logits f32[n, vocab], greedy int32[24] and the least top-1 to top-2 gap f32[]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    found: dict[str, np.ndarray] = {}
    for i, prompt in enumerate(prompts):
        logits = model(torch.tensor([prompt])).logits[0]
        noise = (logits - exact(torch.tensor([prompt])).logits[0]).abs().max().item()
        ids, gap = list(prompt), float("inf")
        for _ in range(NEW_TOKENS):
            top = model(torch.tensor([ids])).logits[0, -1].topk(2)
            gap = min(gap, (top.values[0] - top.values[1]).item())
            ids.append(int(top.indices[0]))
        print(
            f"{folder.name}: std {logits.std():.2f}, f32 noise {noise:.1e}, least gap {gap:.3f}, "
            f"distinct {len(set(ids[len(prompt) :]))} of {NEW_TOKENS}"
        )
        found[f"prompt_{i}"] = np.array(prompt, np.int32)
        found[f"logits_{i}"] = logits.numpy()
        found[f"greedy_{i}"] = np.array(ids[len(prompt) :], np.int32)
        found[f"least_gap_{i}"] = np.array(gap, np.float32)
    return found
