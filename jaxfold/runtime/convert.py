"""Conversion: any checkpoint that can be served, written once as an Orbax checkpoint of ready weights."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.checkpoints.orbax_store import save_weights
from jaxfold.runtime.options import WeightDtype
from jaxfold.runtime.weights import is_quantised
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.runtime.weights import tree_bytes


def convert(
    source: Path,
    destination: Path,
    *,
    shards: int | None = None,
    dtype: WeightDtype = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Write `source` into the new folder `destination`; it loads faster and gives bit-identical logits.

    Args:
        shards: store the values in about this many files (None: Orbax's choice).
        dtype: how weights are written; "auto" is what an engine on a CPU would keep: "int8" for weights that were
            quantised before, else "bf16".

    Returns:
        Bytes of the weights.

    Raises:
        CheckpointError: the source cannot be read, is already converted, or the destination exists.
    """
    if destination.is_dir() and not any(destination.iterdir()):
        destination.rmdir()
    if destination.exists():
        raise CheckpointError(destination, "already exists; give a new directory or remove it first")
    checkpoint = open_checkpoint(source)
    if checkpoint.format == "orbax":
        raise CheckpointError(source, "is already a converted checkpoint")
    cfg, family = read_config(checkpoint)
    kinds = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}
    weight_dtype = jnp.dtype(kinds[dtype if dtype != "auto" else "int8" if is_quantised(checkpoint) else "bf16"])
    progress(f"reading the weights ({weight_dtype.name})")
    weights = load_weights(checkpoint, cfg, family, weight_dtype, None)
    progress(f"writing {tree_bytes(weights) / 1e6:.0f} MB")
    metadata = {"weight_dtype": weight_dtype.name, "jax": jax.__version__, "model_type": cfg.model_type}
    save_weights(weights, destination, sidecar_from=checkpoint, metadata=metadata, shards=shards)
    return tree_bytes(weights)
