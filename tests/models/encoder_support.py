"""What the tests of encoders share: the tiny checkpoints, what transformers made of them, and running one by hand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import EncoderWeights
from jaxfold.models.encoder import encode
from jaxfold.runtime.encoders.loader import read_encoder_config
from jaxfold.runtime.encoders.packing import fill
from jaxfold.runtime.encoders.weights import load_encoder_weights
from jaxfold.tokenizers.encoder import EncoderTokenizer
from jaxfold.tokenizers.encoder import load_encoder_tokenizer
from pallas_kernels.packed_attention import alignment

ENCODERS = Path(__file__).resolve().parent.parent / "golden" / "encoders"
POOLING = {"bert": "mean", "xlm_roberta": "cls"}


@dataclass(frozen=True)
class Golden:
    """Texts, their ids and unit vectors, as transformers has them."""

    texts: tuple[str, ...]
    ids: tuple[list[int], ...]
    vectors: np.ndarray


@dataclass(frozen=True)
class Encoder:
    """A checkpoint in memory."""

    cfg: EncoderConfig
    weights: EncoderWeights
    tokenizer: EncoderTokenizer


def golden(name: str) -> Golden:
    with safe_open(ENCODERS / f"{name}.golden.safetensors", "np") as file:
        texts = tuple(json.loads(file.metadata()["texts"]))
        ids = tuple(file.get_tensor(f"ids.{i}").tolist() for i in range(len(texts)))
        vectors = np.stack([file.get_tensor(f"vector.{i}") for i in range(len(texts))])
    return Golden(texts, ids, vectors)


def load(path: Path, dtype: Any) -> Encoder:
    """As the engine loads it; int8 weights multiply float32 rows."""
    checkpoint = open_checkpoint(path)
    cfg = read_encoder_config(checkpoint)
    cfg = replace(cfg, compute_dtype="bfloat16" if dtype == "bfloat16" else "float32")
    tokenizer = load_encoder_tokenizer(checkpoint.tokenizer_files, cfg.vocab_size)
    return Encoder(cfg, load_encoder_weights(checkpoint, cfg, jnp.dtype(dtype)), tokenizer)


def pooled(encoder: Encoder, sequences: Sequence[Sequence[int]], rows: int) -> np.ndarray:
    """float32[sequences, hidden], not normalised, all of them in one program of `rows` rows."""
    batch = fill(sequences, rows, alignment(encoder.cfg.head_dim))
    run = jax.jit(encode, static_argnames="cfg")
    return np.asarray(run(encoder.weights, batch, cfg=encoder.cfg))[: len(sequences)]


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return vectors / lengths


def cosines(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    products: np.ndarray = (unit(found) * unit(wanted)).sum(axis=1)
    return products
