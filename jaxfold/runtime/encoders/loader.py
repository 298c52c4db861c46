"""From options to a running encoder: checkpoint, programs, weights, check, in that order."""

import logging
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxfold.checkpoints import Checkpoint
from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.checkpoints.sentence import pooling_of
from jaxfold.models.config import ConfigError
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import EncoderWeights
from jaxfold.models.encoder import declare_encoder
from jaxfold.models.encoder_families import encoder_config
from jaxfold.models.params import abstract
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.encoders.api import EncoderInfo
from jaxfold.runtime.encoders.engine import LocalEncoder
from jaxfold.runtime.encoders.packing import fill
from jaxfold.runtime.encoders.packing import row_counts
from jaxfold.runtime.encoders.programs import EncoderPrograms
from jaxfold.runtime.encoders.queue import EncoderQueue
from jaxfold.runtime.encoders.weights import load_encoder_weights
from jaxfold.runtime.memory import free_bytes
from jaxfold.runtime.memory import readable
from jaxfold.runtime.memory import return_freed_memory
from jaxfold.runtime.programs import CompileCounter
from jaxfold.runtime.weights import tree_bytes
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers.encoder import EncoderTokenizer
from jaxfold.tokenizers.encoder import load_encoder_tokenizer
from pallas_kernels.packed_attention import alignment

LOG = logging.getLogger(__name__)
EncoderDtype = Literal["auto", "f32", "bf16", "int8"]
_DTYPES: Mapping[str, Any] = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """Everything that `load_encoder` needs to know.

    Attributes:
        model: path of the checkpoint (a GGUF file or a Hugging Face directory).
        context: most tokens of one text; None means what the model was made for.
        dtype: what weights are kept in and products computed in (int8 weights: in float32 rows). "auto" is float32
            on a CPU, where it is the faster one too, else bfloat16.
        max_queue, max_queue_tokens: requests and tokens that may wait.
        compile_cache_dir: where a second start finds compiled programs; None keeps nothing on disk.
        self_check: compare the bits of a text run alone and in company, in programs of two sizes.
    """

    model: Path
    context: int | None = None
    dtype: EncoderDtype = "auto"
    max_queue: int = 256
    max_queue_tokens: int = 1 << 20
    compile_cache_dir: Path | None = None
    self_check: bool = True


@dataclass(frozen=True)
class LoadedEncoder:
    """A running encoder and what the layers above need beside it."""

    engine: LocalEncoder
    tokenizer: EncoderTokenizer
    checkpoint: Checkpoint


def load_encoder(options: EncoderOptions, progress: Callable[[str], None] = lambda _: None) -> LoadedEncoder:
    """Load an encoder and start it; every program is compiled when this returns.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        CapacityError: it does not fit into memory, or the context asked for is longer than the model's.
    """
    progress("opening the encoder's checkpoint")
    checkpoint = open_checkpoint(options.model)
    cfg = read_encoder_config(checkpoint)
    context = cfg.max_position if options.context is None else options.context
    if context > cfg.max_position:
        raise CapacityError(f"the encoder takes at most {cfg.max_position} tokens, not {context}")
    weight_dtype, compute = choose_dtype(options.dtype)
    cfg = replace(cfg, compute_dtype=compute)
    try:
        tokenizer = load_encoder_tokenizer(checkpoint.tokenizer_files, cfg.vocab_size)
    except TokenizerError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None
    shapes = abstract(declare_encoder(cfg), weight_dtype)
    if tree_bytes(shapes) > free_bytes():
        needed, free = readable(tree_bytes(shapes)), readable(free_bytes())
        raise CapacityError(f"the encoder's weights take {needed}, but only {free} are free")
    compiles = CompileCounter()
    programs = EncoderPrograms(cfg, row_counts(context, alignment(cfg.head_dim)), options.compile_cache_dir)
    programs.warm_up(shapes, progress)
    return_freed_memory()
    progress(f"loading the encoder's weights ({weight_dtype.name})")
    weights = load_encoder_weights(checkpoint, cfg, weight_dtype)
    engine = start_encoder(programs, weights, options, context, compiles)
    return LoadedEncoder(engine, tokenizer, checkpoint)


def start_encoder(
    programs: EncoderPrograms,
    weights: EncoderWeights,
    options: EncoderOptions,
    context: int,
    compiles: CompileCounter,
) -> LocalEncoder:
    """An encoder over compiled programs and weights that are on the device; `options.model` is not read."""
    cfg, aligned = programs.cfg, alignment(programs.cfg.head_dim)
    exact = not options.self_check or is_exact(programs, weights, aligned)
    if not exact:
        LOG.warning("this machine's products are not bit-stable: an embedding's last bits depend on its company")
    info = EncoderInfo(
        model_type=cfg.model_type,
        vocab_size=cfg.vocab_size,
        context_length=context,
        dimensions=cfg.hidden_size,
        pooling=cfg.pooling,
        weight_dtype=_short(weights.layers[0].qkv.dtype),
        compute_dtype=_short(jnp.dtype(cfg.compute_dtype)),
        weight_bytes=tree_bytes(weights),
        platform=jax.devices()[0].platform,
        programs=len(programs.counts),
        exact=exact,
    )
    queue = EncoderQueue(options.max_queue, options.max_queue_tokens)
    return LocalEncoder(programs, weights, info, queue, compiles, aligned)


def read_encoder_config(checkpoint: Checkpoint) -> EncoderConfig:
    """The encoder's settings, its pooling among them.

    Raises:
        CheckpointError: no family serves the checkpoint, or its settings are unusable.
    """
    try:
        cfg = encoder_config(checkpoint.config, pooling_of(checkpoint))
    except ConfigError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None
    if cfg.num_layers > len(checkpoint.tensors):
        raise CheckpointError(
            checkpoint.path, f"config names {cfg.num_layers} layers, but there are {len(checkpoint.tensors)} tensors"
        )
    return cfg


def choose_dtype(asked: EncoderDtype) -> tuple[jnp.dtype, Literal["float32", "bfloat16"]]:
    """What weights are kept in, and what plain products are computed in."""
    auto = "f32" if jax.default_backend() == "cpu" else "bf16"
    weight = jnp.dtype(_DTYPES[auto if asked == "auto" else asked])
    return weight, "bfloat16" if weight == jnp.bfloat16 else "float32"


def is_exact(programs: EncoderPrograms, weights: EncoderWeights, aligned: int) -> bool:
    """Whether one sequence has the same bits alone in each program and behind others in it."""
    random = np.random.default_rng(0)
    vocabulary, most = programs.cfg.vocab_size, min(24, programs.cfg.max_position)
    probe = random.integers(vocabulary, size=most).tolist()
    found = set()
    for rows in programs.counts[:4]:
        company = [random.integers(vocabulary, size=length).tolist() for length in (9, 21) if 64 + most <= rows]
        company = [sequence[: programs.cfg.max_position] for sequence in company]
        for others in ([], company):
            batch = fill([*others, probe], rows, aligned)
            found.add(np.asarray(programs.run(weights, batch))[len(others)].tobytes())
    return len(found) == 1


def _short(dtype: jnp.dtype) -> str:
    return {"float32": "f32", "bfloat16": "bf16"}.get(dtype.name, dtype.name)
