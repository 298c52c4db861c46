"""Outputs of the real SmolLM2-135M-Instruct, in float32 on the dequantised weights of its GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from tokenizers import AddedToken
from tokenizers import Tokenizer
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM
from transformers import LlamaConfig
from transformers import LlamaForCausalLM

from goldens.smollm2_prompts import CHATS
from goldens.smollm2_prompts import RAW_PROMPTS
from goldens.smollm2_prompts import chatml

NEW_TOKENS = 32
KEPT_IDS = 512  # vocabulary ids whose logits are kept, the same at every position
LOGIT_PROMPTS = (2, 4, 9, 12, 19)  # a story, code, Japanese, the long prose and the long chat
LEAST_GAP = 0.002  # a nearer tie could fall either way on another CPU: change the prompt then
TEXT_WINDOW = 1024  # the text is scored in windows of this many tokens, each from an empty context


def make_smollm2(out: Path, gguf_path: Path) -> None:
    """Write `out`/greedy.json, logits.safetensors and text.safetensors."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    reader = gguf.GGUFReader(gguf_path)
    tokenizer = vocabulary(reader)
    model = by_hand(reader)
    check_same_as_transformers(model, gguf_path)
    texts = [*RAW_PROMPTS, *(chatml(chat) for chat in CHATS)]
    prompts = [tokenizer.encode(text).ids for text in texts]
    greedy = [greedy_reply(model, ids) for ids in prompts]
    cases = [
        {"text": text, "is_chat": i >= len(RAW_PROMPTS), "prompt_ids": ids} | reply
        for i, (text, ids, reply) in enumerate(zip(texts, prompts, greedy, strict=True))
    ]
    for case in cases:
        print(len(case["prompt_ids"]), f"{case['least_gap']:.4f}", repr(tokenizer.decode(case["greedy_ids"])))
    near = [case["text"] for case in cases if case["least_gap"] < LEAST_GAP]
    assert not near, f"near ties: {near}"
    (out / "greedy.json").write_text(
        "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n", encoding="utf-8"
    )
    save_file(chosen_logits(model, prompts), out / "logits.safetensors")
    text_ids = tokenizer.encode((out / "text.txt").read_text(encoding="utf-8")).ids
    save_file(text_scores(model, text_ids), out / "text.safetensors")


def contents(reader: gguf.GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def vocabulary(reader: gguf.GGUFReader) -> Tokenizer:
    """The file's byte-level BPE. Its "smollm" pre-tokenizer splits off every digit, then splits as GPT-2 does."""
    assert contents(reader, "tokenizer.ggml.pre") == "smollm"
    tokens = contents(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in contents(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = contents(reader, "tokenizer.ggml.token_type")
    control = [text for text, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    return tokenizer


def by_hand(reader: gguf.GGUFReader) -> LlamaForCausalLM:
    """transformers' llama with the file's dequantised weights, q and k rows put back into Hugging Face order."""
    layers = contents(reader, "llama.block_count")
    heads = {
        "q_proj": contents(reader, "llama.attention.head_count"),
        "k_proj": contents(reader, "llama.attention.head_count_kv"),
    }
    config = LlamaConfig(
        vocab_size=contents(reader, "llama.vocab_size"),
        hidden_size=contents(reader, "llama.embedding_length"),
        intermediate_size=contents(reader, "llama.feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads["q_proj"],
        num_key_value_heads=heads["k_proj"],
        rms_norm_eps=contents(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": contents(reader, "llama.rope.freq_base")},
        max_position_embeddings=contents(reader, "llama.context_length"),
        tie_word_embeddings=True,
    )
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    weights: dict[str, torch.Tensor] = {}
    model = LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager")
    for name, _ in model.named_parameters():
        value = tensors.pop(names.get_name(name, try_suffixes=(".weight",)))
        for projection, count in heads.items():
            if f".{projection}." in name:
                pairs = value.reshape(count, value.shape[0] // count // 2, 2, value.shape[1])
                value = pairs.swapaxes(1, 2).reshape(value.shape)
        weights[name] = torch.from_numpy(np.array(value, np.float32, order="C"))
    assert not tensors, sorted(tensors)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)  # tied to the embedding
    return model.eval()


@torch.no_grad()
def check_same_as_transformers(model: LlamaForCausalLM, path: Path) -> None:
    """transformers' own GGUF reader must give the same weights, bit for bit."""
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours = dict(model.named_parameters())
    for name, value in theirs.named_parameters():
        assert torch.equal(value, ours[name]), name
    assert theirs.config.rope_parameters["rope_theta"] == model.config.rope_parameters["rope_theta"]
    assert theirs.config.rms_norm_eps == model.config.rms_norm_eps


@torch.no_grad()
def greedy_reply(model: LlamaForCausalLM, prompt: list[int]) -> Mapping[str, Any]:
    """NEW_TOKENS argmax tokens, not stopped by an end token, and the least top-1 to top-2 logit gap among them."""
    ids, gaps = list(prompt), []
    step = model(torch.tensor([ids]), use_cache=True)
    while True:
        top = step.logits[0, -1].topk(2)
        gaps.append((top.values[0] - top.values[1]).item())
        ids.append(int(top.indices[0]))
        if len(gaps) == NEW_TOKENS:
            return {"greedy_ids": ids[len(prompt) :], "least_gap": round(min(gaps), 6)}
        step = model(torch.tensor([ids[-1:]]), cache=step.past_key_values, use_cache=True)


@torch.no_grad()
def chosen_logits(model: LlamaForCausalLM, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Logits f32[5, KEPT_IDS] and logsumexp f32[5] at four positions and the last one, for each of LOGIT_PROMPTS."""
    rng = np.random.default_rng(7)
    kept = np.sort(rng.choice(model.config.vocab_size, KEPT_IDS, replace=False)).astype(np.int32)
    found: dict[str, np.ndarray] = {"ids": kept}
    for number in LOGIT_PROMPTS:
        length = len(prompts[number])
        positions = np.array([0, length // 4, length // 2, 3 * length // 4, length - 1], np.int32)
        rows = model(torch.tensor([prompts[number]])).logits[0][torch.from_numpy(positions).long()]
        found[f"positions_{number}"] = positions
        found[f"logits_{number}"] = np.ascontiguousarray(rows.numpy()[:, kept])
        found[f"logsumexp_{number}"] = rows.logsumexp(-1).numpy()
    return found


@torch.no_grad()
def text_scores(model: LlamaForCausalLM, ids: list[int]) -> dict[str, np.ndarray]:
    """The text's ids int32[n], and for each window's tokens but the first: nll f32 and the argmax int32 before it."""
    nll, argmax = [], []
    for start in range(0, len(ids), TEXT_WINDOW):
        window = torch.tensor([ids[start : start + TEXT_WINDOW]])
        logits = model(window).logits[0, :-1]
        nll.append(torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="none").numpy())
        argmax.append(logits.argmax(-1).numpy().astype(np.int32))
    scores = np.concatenate(nll)
    print(f"text: {len(ids)} tokens, mean NLL {scores.mean():.4f}")
    return {
        "ids": np.array(ids, np.int32),
        "window": np.array(TEXT_WINDOW, np.int32),
        "nll": scores,
        "argmax": np.concatenate(argmax),
    }
