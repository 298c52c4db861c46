"""Weights on the device: read and joined from a checkpoint, or taken whole from the cache or an Orbax directory."""

import hashlib
import logging
import math
import os
from collections.abc import Callable
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jaxfold.models.assemble as assemble_module
from jaxfold.checkpoints import Checkpoint
from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import weight_cache
from jaxfold.checkpoints.orbax_store import restore_weights
from jaxfold.models.assemble import Source
from jaxfold.models.assemble import sources
from jaxfold.models.config import ConfigError
from jaxfold.models.config import DecoderConfig
from jaxfold.models.decoder import Layer
from jaxfold.models.decoder import Weights
from jaxfold.models.decoder import declare
from jaxfold.models.params import Param
from jaxfold.models.params import abstract
from jaxfold.models.params import map_params
from jaxfold.models.params import param_dtype
from jaxfold.models.registry import Family
from jaxfold.models.registry import family_of

LOG = logging.getLogger(__name__)
CACHE_BYTES = 64 << 30
"""Bound on the weight cache's files, all models together."""

Place = tuple[str, int | None]


def read_config(checkpoint: Checkpoint) -> tuple[DecoderConfig, Family]:
    """The model's settings and its family.

    Raises:
        CheckpointError: no family serves the checkpoint, or its settings are unusable.
    """
    try:
        family = family_of(checkpoint.model_type)
        layers, held = checkpoint.config.get("num_hidden_layers"), len(checkpoint.tensors)
        # Before anything is sized by that number.
        if isinstance(layers, int) and layers > held:
            raise ConfigError(f"config names {layers} layers, but there are {held} tensors")
        return family.config(checkpoint.config), family
    except ConfigError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(checkpoint.path, f"the settings cannot be read ({error!r})") from None


def load_weights(
    checkpoint: Checkpoint,
    cfg: DecoderConfig,
    family: Family,
    weight_dtype: jnp.dtype,
    cache_dir: Path | None,
    progress: Callable[[str], None] | None = None,
) -> Weights:
    """The weight tree on the default device.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the settings say, or cannot be read.
    """
    if checkpoint.format == "orbax":
        return _restore(checkpoint, cfg, weight_dtype)
    check_shapes(checkpoint, cfg, family)
    key = _cache_key(checkpoint, cfg, weight_dtype)
    if cache_dir is not None:
        stored = weight_cache.load(cache_dir, key)
        if stored is not None:
            if progress is not None:
                progress("weights from the cache of an earlier start")
            return _place(cfg, lambda place, _: jnp.asarray(stored[_name(place)]))
    arrays = build_arrays(checkpoint, cfg, family, weight_dtype)
    if cache_dir is not None:
        weight_cache.store(cache_dir, key, {_name(place): array for place, array in arrays.items()}, CACHE_BYTES)
    # Each host array is dropped as soon as it is on the device.
    return _place(cfg, lambda place, _: jnp.asarray(arrays.pop(place)))


def build_arrays(
    checkpoint: Checkpoint, cfg: DecoderConfig, family: Family, weight_dtype: jnp.dtype
) -> dict[Place, np.ndarray]:
    """Every leaf as a host array in its stored dtype, keyed by (field, layer or None)."""
    params = _params(cfg)

    def build(item: tuple[Place, Source]) -> tuple[Place, np.ndarray]:
        place, source = item
        dtype = np.dtype(ml_dtypes.bfloat16 if _is_bf16(params[place], weight_dtype) else np.float32)
        return place, np.ascontiguousarray(source.build(checkpoint.read).astype(dtype))

    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        return dict(pool.map(build, sources(cfg, family)))


def check_shapes(checkpoint: Checkpoint, cfg: DecoderConfig, family: Family) -> None:
    """Every needed tensor is there with the right shape, before anything is read.

    Raises:
        CheckpointError: naming the file and the tensor.
    """
    params = _params(cfg)
    for place, source in sources(cfg, family):
        wanted = params[place].shape
        rows = 0
        for name in source.names:
            info = checkpoint.tensors.get(name)
            if info is None:
                raise CheckpointError(checkpoint.path, "is missing", name)
            if len(info.shape) != len(wanted) or info.shape[1:] != wanted[1:]:
                raise CheckpointError(checkpoint.path, f"has shape {list(info.shape)}, not {list(wanted)}", name)
            rows += info.shape[0]
        if rows != wanted[0]:
            named = ", ".join(source.names)
            raise CheckpointError(checkpoint.path, f"{named} together have {rows} rows, not {wanted[0]}")


def tree_bytes(tree: Any) -> int:
    """Bytes of a tree of arrays, or of the arrays that its shapes stand for."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _restore(checkpoint: Checkpoint, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> Weights:
    """The weights of a converted directory, cast where they are stored in another dtype than the one asked for."""
    embed = checkpoint.tensors.get("embed")
    stored = jnp.dtype(embed.stored) if embed is not None and embed.stored in ("float32", "bfloat16") else weight_dtype
    weights: Weights = restore_weights(checkpoint.path, abstract(declare(cfg), stored))
    if stored == weight_dtype:
        return weights
    if stored.itemsize < weight_dtype.itemsize:
        LOG.warning("%s holds %s values: kept as %s they stay rounded", checkpoint.path, stored.name, weight_dtype.name)

    def cast(leaf: jax.Array, wanted: jax.ShapeDtypeStruct) -> jax.Array:
        # On the host, where the source's own values would have been rounded.
        return leaf if leaf.dtype == wanted.dtype else jnp.asarray(np.asarray(leaf).astype(wanted.dtype))

    kept: Weights = jax.tree.map(cast, weights, abstract(declare(cfg), weight_dtype))
    return kept


def _params(cfg: DecoderConfig) -> Mapping[Place, Param]:
    """The declaration by place."""
    found: dict[Place, Param] = {}
    _place(cfg, lambda place, param: found.setdefault(place, param))
    return found


def _place(cfg: DecoderConfig, fill: Callable[[Place, Param], Any]) -> Weights:
    """The weight tree with `fill((field, layer), declaration)` for each leaf, in reading order."""
    declared = declare(cfg)

    def layer(i: int, spec: Layer) -> Layer:
        fields = {name: getattr(spec, name) for name in Layer.__dataclass_fields__}
        filled: dict[str, Any] = {n: None if p is None else fill((n, i), p) for n, p in fields.items()}
        return Layer(**filled)

    return Weights(
        embed=fill(("embed", None), declared.embed),  # type: ignore[arg-type]
        layers=tuple(layer(i, spec) for i, spec in enumerate(declared.layers)),
        final_norm=fill(("final_norm", None), declared.final_norm),  # type: ignore[arg-type]
        head=None if declared.head is None else fill(("head", None), declared.head),  # type: ignore[arg-type]
    )


def _is_bf16(param: Param, weight_dtype: jnp.dtype) -> bool:
    return param_dtype(param, weight_dtype) == jnp.dtype(jnp.bfloat16)


def _name(place: Place) -> str:
    field, layer = place
    return field if layer is None else f"layers.{layer}.{field}"


def _cache_key(checkpoint: Checkpoint, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> str:
    shapes = map_params(lambda p: (p.shape, str(param_dtype(p, weight_dtype))), declare(cfg))
    source = Path(assemble_module.__file__).read_text()
    text = "\n".join([checkpoint.fingerprint, checkpoint.format, repr(jax.tree.leaves(shapes)), source])
    return hashlib.sha256(text.encode()).hexdigest()
