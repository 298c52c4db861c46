"""What the golden tests share: loading a model, running it by hand over the paged step, and variants of checkpoints."""

import json
import shutil
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models import Cache
from jaxfold.models import DecoderConfig
from jaxfold.models import Part
from jaxfold.models import Plan
from jaxfold.models import Weights
from jaxfold.models import forward
from jaxfold.models import logits
from jaxfold.models import new_cache
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import load_tokenizer

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
TINY = GOLDEN / "tiny"
PAGE = 64
CONTEXT_STEP = 512  # a table's width in tokens is a multiple of the key blocks that attention folds

Dtype = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class Model:
    """A checkpoint in memory. `dtype` is that of weights, products and the cache alike."""

    cfg: DecoderConfig
    weights: Weights
    dtype: Dtype


def load_model(path: Path, dtype: Dtype) -> Model:
    """The checkpoint at `path` as the engine loads it: matrices in `dtype`, products and cache too (int8: bfloat16)."""
    checkpoint = open_checkpoint(path)
    cfg, family = read_config(checkpoint)
    weights = load_weights(checkpoint, cfg, family, jnp.dtype(dtype), cache_dir=None)
    computed: Any = "bfloat16" if dtype == "int8" else dtype
    return Model(replace(cfg, compute_dtype=computed), weights, computed)


def load_vocabulary(path: Path) -> Tokenizer:
    checkpoint = open_checkpoint(path)
    rows = int(checkpoint.config["vocab_size"])
    return load_tokenizer(checkpoint.tokenizer_files, vocab_size=rows, eos_ids=checkpoint.eos_token_ids)


@partial(jax.jit, static_argnames="cfg", donate_argnames="cache")
def step(weights: Weights, cache: Cache, plan: Plan, *, cfg: DecoderConfig) -> tuple[jax.Array, Cache]:
    """One step and the logits of the rows it returns. Tests with the same settings and shapes share a program."""
    hidden, cache = forward(weights, cache, plan, cfg)
    return logits(weights, hidden, cfg), cache


class Runner:
    """Runs token ids by hand: each lane's prompt in prefill chunks, then all lanes decode together."""

    def __init__(self, model: Model, *, lanes: int, columns: int, context: int = CONTEXT_STEP) -> None:
        assert context % CONTEXT_STEP == 0
        self.cfg = model.cfg
        self.weights = model.weights
        self.lanes = lanes
        self.columns = columns
        self.context = context
        self.groups = tuple(model.cfg.groups)
        width = context // PAGE
        self.tables = np.arange(1, 1 + lanes * width, dtype=np.int32).reshape(lanes, width)  # page 0 is scratch
        pages = dict.fromkeys(self.groups, 1 + lanes * width)
        self.cache = new_cache(model.cfg, pages, PAGE, jnp.dtype(model.dtype))

    def prefill(self, lane: int, ids: Sequence[int]) -> np.ndarray:
        """Logits float32[len(ids), vocab] of a prompt that starts at position 0 of the lane."""
        assert 0 < len(ids) <= self.context
        rows = []
        for start in range(0, len(ids), self.columns):
            chunk = list(ids[start : start + self.columns])
            tokens = np.zeros((1, self.columns), np.int32)
            tokens[0, : len(chunk)] = chunk
            rows.append(self._run(tokens, [lane], [start], [len(chunk)])[: len(chunk)])
        return np.concatenate(rows)

    def decode(self, tokens: Sequence[int], starts: Sequence[int]) -> np.ndarray:
        """Logits float32[lanes, vocab] after one more token in every lane, `starts` being its position."""
        column = np.array(tokens, np.int32)[:, None]
        return self._run(column, list(range(self.lanes)), list(starts), [1] * self.lanes)

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """`count` argmax tokens after each prompt (one prompt a lane), not stopped by an end token."""
        assert len(prompts) == self.lanes
        found = [[int(self.prefill(lane, ids)[-1].argmax())] for lane, ids in enumerate(prompts)]
        for done in range(1, count):
            starts = [len(ids) + done - 1 for ids in prompts]
            rows = self.decode([reply[-1] for reply in found], starts)
            for reply, row in zip(found, rows, strict=True):
                reply.append(int(row.argmax()))
        return found

    def _run(self, tokens: np.ndarray, lanes: list[int], starts: list[int], lengths: list[int]) -> np.ndarray:
        table = jnp.asarray(self.tables[lanes])
        part = Part(
            tokens=jnp.asarray(tokens),
            slot=jnp.asarray(lanes, jnp.int32),
            start=jnp.asarray(starts, jnp.int32),
            length=jnp.asarray(lengths, jnp.int32),
            keep=jnp.zeros(len(lanes), jnp.int32),
            tables=dict.fromkeys(self.groups, table),
        )
        plan = Plan(parts=(part,), rows=jnp.arange(tokens.size, dtype=jnp.int32))
        scores, self.cache = step(self.weights, self.cache, plan, cfg=self.cfg)
        return np.asarray(scores)


@dataclass(frozen=True)
class TinyGolden:
    """What transformers computed from one tiny checkpoint, for each prompt."""

    prompts: tuple[list[int], ...]
    logits: tuple[np.ndarray, ...]
    greedy: tuple[list[int], ...]


def tiny_golden(name: str, variant: str = "") -> TinyGolden:
    found = load_file(TINY / f"{name}{'.' + variant if variant else ''}.golden.safetensors")
    return TinyGolden(
        prompts=tuple(found[f"prompt_{i}"].tolist() for i in range(2)),
        logits=tuple(found[f"logits_{i}"] for i in range(2)),
        greedy=tuple(found[f"greedy_{i}"].tolist() for i in range(2)),
    )


def tiny_folder(name: str, into: Path, variant: str = "", changes: Mapping[str, Any] | None = None) -> Path:
    """A copy of the tiny checkpoint under `into`, with another of its config files or with changed settings."""
    folder = into / f"{name}-{variant or 'base'}"
    shutil.copytree(TINY / name, folder)
    config = read_json(TINY / name / (f"config.{variant}.json" if variant else "config.json"))
    write_json(folder / "config.json", config | dict(changes or {}))
    return folder


def wrap_multimodal(folder: Path, prefix: str) -> None:
    """Turn a gemma3_text directory into the layout of the multimodal checkpoints, a vision tensor included.

    `prefix` stands before the text model's tensors: "language_model.model." as on the hub, or the
    "model.language_model." that transformers 5 writes.
    """
    text = read_json(folder / "config.json")
    wrapper = {key: text[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype")}
    write_json(
        folder / "config.json",
        wrapper
        | {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": text,
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "num_hidden_layers": 1},
            "mm_tokens_per_image": 4,
        },
    )
    weights = load_file(folder / "model.safetensors")
    moved = {prefix + name.removeprefix("model."): value for name, value in weights.items()}
    moved["vision_tower.vision_model.post_layernorm.weight"] = np.ones(32, np.float32)
    save_file(moved, folder / "model.safetensors")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
