"""The model by hand: weights as a pytree and two jitted steps over a plain paged cache. No engine, no thread."""

from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Cache
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import forward
from jaxfold.models.decoder import logits
from jaxfold.models.decoder import new_cache
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.runtime.loader import compute_name
from jaxfold.runtime.loader import read_tokenizer
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.tokenizers import Tokenizer
from pallas_kernels.paged_attention.xla import BLOCK

PAGE = 64
_DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}


@dataclass(frozen=True)
class Model:
    """A checkpoint in memory: `weights` is a pytree of arrays, `cfg` is static, `prefill` and `decode` are jitted.

    Shapes: `lanes` conversations of at most `context` tokens live in one cache; each has pages of its own.
    """

    cfg: DecoderConfig
    weights: Weights
    tokenizer: Tokenizer

    def new_cache(self, lanes: int = 1, context: int = 2048) -> Cache:
        """An empty cache for `lanes` conversations of `context` tokens (rounded up to whole key blocks)."""
        pages = 1 + lanes * (-(-context // BLOCK)) * (BLOCK // PAGE)
        return new_cache(self.cfg, dict.fromkeys(self.cfg.groups, pages), PAGE, jnp.dtype(self.cfg.compute_dtype))

    def prefill(self, cache: Cache, tokens: jax.Array, lane: int, start: int, lanes: int) -> tuple[jax.Array, Cache]:
        """Run a chunk of one conversation; `cache` is donated.

        Args:
            tokens: int32[n] that stand at positions `start .. start + n - 1` of conversation `lane`.
            lanes: conversations that the cache was made for.

        Returns:
            logits float32[n, vocab_size] of every token, and the cache.

        Raises:
            ValueError: the conversation or the positions are outside the cache.
        """
        room = (cache.keys[0].shape[1] - 1) // lanes * PAGE
        if not 0 <= lane < lanes or start < 0 or start + tokens.shape[0] > room:
            raise ValueError(
                f"tokens at {start}..{start + tokens.shape[0] - 1} of conversation {lane} are outside a cache of "
                f"{lanes} conversations of {room} tokens"
            )
        slot, first = np.array([lane], np.int32), np.array([start], np.int32)
        scores, cache = _step(self.weights, cache, jnp.asarray(tokens)[None, :], slot, first, cfg=self.cfg, lanes=lanes)
        return scores, cache

    def decode(self, cache: Cache, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Cache]:
        """Run one token of every conversation; `cache` is donated.

        Args:
            tokens: int32[lanes], the token of each conversation.
            positions: int32[lanes], where it stands; below the context that the cache was made for.

        Returns:
            logits float32[lanes, vocab_size], and the cache.
        """
        lanes = int(tokens.shape[0])
        slot = np.arange(lanes, dtype=np.int32)
        scores, cache = _step(
            self.weights, cache, jnp.asarray(tokens)[:, None], slot, jnp.asarray(positions), cfg=self.cfg, lanes=lanes
        )
        return scores, cache


@partial(jax.jit, static_argnames=("cfg", "lanes"), donate_argnames="cache")
def _step(
    weights: Weights,
    cache: Cache,
    tokens: jax.Array,
    slot: jax.Array,
    start: jax.Array,
    *,
    cfg: DecoderConfig,
    lanes: int,
) -> tuple[jax.Array, Cache]:
    """One part of `tokens` int32[n, columns] whose lane i is conversation `slot[i]`, with the fixed page layout."""
    count, columns = tokens.shape
    width = (cache.keys[0].shape[1] - 1) // lanes
    table = 1 + slot[:, None] * np.int32(width) + jnp.arange(width, dtype=jnp.int32)[None, :]
    part = Part(
        tokens=tokens.astype(jnp.int32),
        slot=slot,
        start=start.astype(jnp.int32),
        length=jnp.full(count, columns, jnp.int32),
        keep=jnp.zeros(count, jnp.int32),
        tables=dict.fromkeys(cfg.groups, table),
    )
    rows = jnp.arange(count * columns, dtype=jnp.int32)
    hidden, cache = forward(weights, cache, Plan((part,), rows), cfg)
    return logits(weights, hidden, cfg), cache


def load(path: str | Path, dtype: str = "bf16") -> Model:
    """A checkpoint as a `Model`.

    Args:
        path: a GGUF file, a Hugging Face directory or a converted directory.
        dtype: "bf16" or "f32", for weights, products and cache alike.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ValueError: `dtype` is neither.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
    checkpoint = open_checkpoint(path)
    cfg, family = read_config(checkpoint)
    kind = jnp.dtype(_DTYPES[dtype])
    cfg = replace(cfg, compute_dtype=compute_name(kind))
    weights = load_weights(checkpoint, cfg, family, kind, None)
    return Model(cfg, weights, read_tokenizer(checkpoint, cfg))
