"""The draft model of `--draft-model`: opened and checked early, loaded and compiled once the other model is sized."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxfold.checkpoints import Checkpoint
from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import new_cache
from jaxfold.models.registry import Family
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.device import Device
from jaxfold.runtime.drafting.costs import measure
from jaxfold.runtime.drafting.model import DraftModel
from jaxfold.runtime.memory import readable
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.placement import ONE_DEVICE
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.sampling.state import new_state
from jaxfold.runtime.table import draft_table
from jaxfold.runtime.weights import check_shapes
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.runtime.weights import tree_bytes
from jaxfold.tokenizers import Tokenizer
from pallas_kernels.paged_attention.xla import BLOCK

SHARE = 0.25
"""Part of the memory left for caches that the draft model's cache may take."""

Dtypes = tuple[jnp.dtype, jnp.dtype, jnp.dtype]


@dataclass(frozen=True)
class DraftSource:
    """A draft model that fits the other one, not loaded yet. `dtypes` are those of weights, products and cache."""

    checkpoint: Checkpoint
    cfg: DecoderConfig
    family: Family
    dtypes: Dtypes

    @property
    def weight_bytes(self) -> int:
        return tree_bytes(ONE_DEVICE.local_shapes(self.cfg, self.dtypes[0]))

    def context(self, options: EngineOptions, wanted: int, budget: int) -> int:
        """Tokens of a conversation that drafts can be made for, in whole pages.

        Args:
            wanted: the other model's window.
            budget: bytes for the caches of both.

        Raises:
            CapacityError: there is no room for anything useful.
        """
        per_token = sum(self.cfg.kv_bytes_per_token(self.dtypes[2].itemsize).values()) * options.parallel
        fitting = max(int(budget * SHARE), 0) // per_token // options.page_size * options.page_size
        context = min(wanted, self.cfg.max_position, fitting)
        if context < min(BLOCK, wanted, self.cfg.max_position):
            raise CapacityError(
                f"--draft-model: its cache would need {readable(per_token * min(wanted, BLOCK))} at least, "
                f"and {readable(max(int(budget * SHARE), 0))} are left for it"
            )
        return context

    def cache_bytes(self, options: EngineOptions, context: int) -> int:
        """What the cache takes."""
        each = sum(self.cfg.kv_bytes_per_token(self.dtypes[2].itemsize).values()) * options.page_size
        return each * (1 + options.parallel * -(-context // options.page_size))


def open_draft(
    options: EngineOptions,
    dtypes: Callable[[Checkpoint], Dtypes],
    tokenizer_of: Callable[[Checkpoint, DecoderConfig], Tokenizer],
    target: Tokenizer,
) -> DraftSource | None:
    """The draft model that the options name, checked against the tokenizer of the other model; None: there is none.

    Raises:
        CheckpointError: it cannot be used, or its tokens mean something else.
    """
    if options.draft_model is None:
        return None
    checkpoint = open_checkpoint(options.draft_model)
    cfg, family = read_config(checkpoint)
    chosen = dtypes(checkpoint)
    cfg = replace(cfg, compute_dtype="bfloat16" if chosen[1] == jnp.dtype(jnp.bfloat16) else "float32")
    check_same_tokens(checkpoint, tokenizer_of(checkpoint, cfg), target)
    if checkpoint.format != "orbax":
        check_shapes(checkpoint, cfg, family)
    return DraftSource(checkpoint, cfg, family, chosen)


def check_same_tokens(checkpoint: Checkpoint, draft: Tokenizer, target: Tokenizer) -> None:
    """Every id must stand for the same bytes in both; rows behind a vocabulary stand for none.

    Raises:
        CheckpointError: one does not.
    """
    shared = min(draft.vocab_size, target.vocab_size)
    for token in range(max(draft.vocab_size, target.vocab_size)):
        same = draft.token_bytes(token) == target.token_bytes(token)
        if not same or (token < shared and draft.is_control(token) != target.is_control(token)):
            raise CheckpointError(
                checkpoint.path, f"cannot draft for this model: token {token} is not the same in their tokenizers"
            )


def load_draft(
    source: DraftSource, options: EngineOptions, context: int, vocab: int, progress: Callable[[str], None]
) -> DraftModel:
    """The draft model on its device, its programs ready and their cost measured. `vocab`: see `DraftModel`."""
    progress("the draft model")
    cfg, (weight_dtype, _, kv_dtype) = source.cfg, source.dtypes
    each = -(-context // options.page_size)
    width = -(-context // BLOCK) * (BLOCK // options.page_size)
    pages = dict.fromkeys(cfg.groups, 1 + each * options.parallel)
    table = draft_table(options.parallel, dict.fromkeys(cfg.groups, width))
    programs = Programs(cfg, table, options.compile_cache_dir)
    cache = jax.eval_shape(lambda: new_cache(cfg, pages, options.page_size, kv_dtype))
    state = jax.eval_shape(lambda: new_state(table.lanes, cfg.vocab_size, context))
    programs.warm_up(ONE_DEVICE.weight_shapes(cfg, weight_dtype), cache, state, progress)
    weights: Weights = load_weights(
        source.checkpoint, cfg, source.family, weight_dtype, options.weight_cache_dir, progress
    )
    device = Device(programs, weights, pages, options.page_size, kv_dtype, context)
    return DraftModel(device, measure(device), context, vocab)
