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
from jax.sharding import SingleDeviceSharding

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
from jaxfold.models.encoder_families import ENCODER_TYPES
from jaxfold.models.layers.matrix import Int8Matrix
from jaxfold.models.layers.matrix import Matrix
from jaxfold.models.params import Param
from jaxfold.models.params import abstract
from jaxfold.models.params import map_params
from jaxfold.models.params import param_dtype
from jaxfold.models.registry import Family
from jaxfold.models.registry import family_of
from jaxfold.runtime.placement import ONE_DEVICE
from jaxfold.runtime.placement import Placement
from pallas_kernels.quantised_matmul import quantise_weight
from pallas_kernels.quantised_matmul import reference

LOG = logging.getLogger(__name__)
CACHE_BYTES = 64 << 30
"""Bound on the weight cache's files, all models together."""

Place = tuple[str, int | None]

_SCALES = ".scales"
"""What follows a matrix's name in the name of its scales."""


def read_config(checkpoint: Checkpoint) -> tuple[DecoderConfig, Family]:
    """The model's settings and its family.

    Raises:
        CheckpointError: no family serves the checkpoint, or its settings are unusable.
    """
    if checkpoint.model_type in ENCODER_TYPES:
        raise CheckpointError(checkpoint.path, f"is an encoder ({checkpoint.model_type}): serve it with --embeddings")
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
    place: Placement = ONE_DEVICE,
) -> Weights:
    """The weight tree on the device, or split over several.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the settings say, or cannot be read.
    """
    tell = progress or (lambda _: None)
    if checkpoint.format == "orbax":
        tell(f"loading the weights ({weight_dtype.name})")
        return _restore(checkpoint, cfg, weight_dtype, place)
    check_shapes(checkpoint, cfg, family)
    key = _cache_key(checkpoint, cfg, weight_dtype)
    if cache_dir is not None:
        stored = weight_cache.load(cache_dir, key)
        if stored is not None:
            tell(f"loading the weights ({weight_dtype.name}) from the cache of an earlier start")
            return _on_device(cfg, weight_dtype, dict(stored), place)
    tell(f"loading the weights ({weight_dtype.name})")
    arrays = build_arrays(checkpoint, cfg, family, weight_dtype)
    if cache_dir is not None:
        weight_cache.store(cache_dir, key, arrays, CACHE_BYTES)
    return _on_device(cfg, weight_dtype, arrays, place)


def build_arrays(
    checkpoint: Checkpoint, cfg: DecoderConfig, family: Family, weight_dtype: jnp.dtype
) -> dict[str, np.ndarray]:
    """Every array of the tree on the host in its stored dtype, by name; an int8 matrix is two (see `_SCALES`)."""
    params = _params(cfg)

    def build(item: tuple[Place, Source]) -> list[tuple[str, np.ndarray]]:
        place, source = item
        return stored_arrays(_name(place), source.build(checkpoint.read), param_dtype(params[place], weight_dtype))

    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        return {name: array for arrays in pool.map(build, sources(cfg, family)) for name, array in arrays}


def stored_arrays(name: str, array: np.ndarray, dtype: jnp.dtype) -> list[tuple[str, np.ndarray]]:
    """The named arrays that keep `array` in `dtype`."""
    if dtype == jnp.int8:
        values, scales = quantise_weight(np.ascontiguousarray(array, np.float32))
        return [(name, values), (name + _SCALES, scales)]
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == jnp.bfloat16 else np.float32)
    return [(name, np.ascontiguousarray(array.astype(kind)))]


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


def is_quantised(checkpoint: Checkpoint) -> bool:
    """Whether any matrix of a GGUF file is stored in fewer than 16 bits, or those of a converted one are int8."""
    if checkpoint.format == "orbax":
        return _stored_dtype(checkpoint) == jnp.int8
    return checkpoint.format == "gguf" and any(info.stored.startswith("Q") for info in checkpoint.tensors.values())


def _stored_dtype(checkpoint: Checkpoint) -> jnp.dtype:
    """What a converted directory holds its matrices in."""
    if "embed.values" in checkpoint.tensors:
        return jnp.dtype(jnp.int8)
    embed = checkpoint.tensors.get("embed")
    return jnp.dtype(jnp.float32 if embed is not None and embed.stored == "float32" else jnp.bfloat16)


def _restore(checkpoint: Checkpoint, cfg: DecoderConfig, weight_dtype: jnp.dtype, place: Placement) -> Weights:
    """The weights of a converted directory, cast where they are stored in another dtype than the one asked for."""
    kept = _stored_dtype(checkpoint)
    shapes = abstract(declare(cfg), kept)
    if place.mesh is not None:
        # Through the host: one device need not hold the whole model.
        host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=host), shapes)
    weights: Weights = restore_weights(checkpoint.path, shapes)
    if kept == weight_dtype and place.mesh is None:
        return weights
    if kept.itemsize < weight_dtype.itemsize:
        LOG.warning("%s holds %s values: kept as %s they stay rounded", checkpoint.path, kept.name, weight_dtype.name)
    # On the host, where the source's own values would have been rounded.
    arrays: dict[str, np.ndarray] = {}
    for spot, param in _params(cfg).items():
        field, layer = spot
        leaf = getattr(weights if layer is None else weights.layers[layer], field)
        if kept == weight_dtype:
            arrays.update(_as_stored(_name(spot), leaf))
        else:
            arrays.update(stored_arrays(_name(spot), _whole(leaf), param_dtype(param, weight_dtype)))
    return _on_device(cfg, weight_dtype, arrays, place)


def _as_stored(name: str, leaf: Matrix) -> list[tuple[str, np.ndarray]]:
    """The named arrays of a leaf on the host, as they are."""
    if isinstance(leaf, Int8Matrix):
        return [(name, np.asarray(leaf.values)), (name + _SCALES, np.asarray(leaf.scales))]
    return [(name, np.asarray(leaf))]


def _whole(leaf: Matrix) -> np.ndarray:
    """A stored array or matrix on the host, int8 values multiplied out."""
    if isinstance(leaf, Int8Matrix):
        values: np.ndarray = np.asarray(leaf.values).astype(np.float32) * np.asarray(leaf.scales)[:, None]
        return values
    return np.asarray(leaf)


def _on_device(cfg: DecoderConfig, weight_dtype: jnp.dtype, arrays: dict[str, np.ndarray], place: Placement) -> Weights:
    """The weight tree over named host arrays, each of which is dropped as soon as it is on the device."""

    def fill(spot: Place, param: Param) -> Matrix:
        name = _name(spot)
        values = place.put(param, arrays.pop(name))
        if param_dtype(param, weight_dtype) != jnp.int8:
            return values
        return Int8Matrix(values, place.put(param, arrays.pop(name + _SCALES)))

    return _place(cfg, fill)


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


def _name(place: Place) -> str:
    field, layer = place
    return field if layer is None else f"layers.{layer}.{field}"


def _cache_key(checkpoint: Checkpoint, cfg: DecoderConfig, weight_dtype: jnp.dtype) -> str:
    shapes = map_params(lambda p: (p.shape, str(param_dtype(p, weight_dtype))), declare(cfg))
    sources_used = [Path(module.__file__ or "").read_text() for module in (assemble_module, reference)]
    text = "\n".join([checkpoint.fingerprint, checkpoint.format, repr(jax.tree.leaves(shapes)), *sources_used])
    return hashlib.sha256(text.encode()).hexdigest()
