"""An encoder's weights on the device, checked against its settings before anything is read."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxfold.checkpoints import Checkpoint
from jaxfold.checkpoints import CheckpointError
from jaxfold.models.encoder import EncoderConfig
from jaxfold.models.encoder import EncoderLayer
from jaxfold.models.encoder import EncoderWeights
from jaxfold.models.encoder import declare_encoder
from jaxfold.models.encoder_sources import Source
from jaxfold.models.encoder_sources import encoder_sources
from jaxfold.models.layers.matrix import Int8Matrix
from jaxfold.models.layers.matrix import Matrix
from jaxfold.models.params import Param
from jaxfold.models.params import param_dtype
from pallas_kernels.quantised_matmul import quantise_weight

Place = tuple[str, int | None]


def load_encoder_weights(checkpoint: Checkpoint, cfg: EncoderConfig, weight_dtype: jnp.dtype) -> EncoderWeights:
    """The weight tree on the default device.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the settings say, or cannot be read.
    """
    found = dict(encoder_sources(cfg, checkpoint.tensors))
    declared = declare_encoder(cfg)
    params = {place: _param(declared, place) for place in found}
    for place, source in found.items():
        _check(checkpoint, source, params[place].shape)

    def build(place: Place) -> Matrix:
        return _stored(found[place].build(checkpoint.read), param_dtype(params[place], weight_dtype))

    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        leaves = dict(zip(found, pool.map(build, found), strict=True))
    layers = [{field: leaf for (field, at), leaf in leaves.items() if at == i} for i in range(cfg.num_layers)]
    top: dict[str, Any] = {field: leaf for (field, at), leaf in leaves.items() if at is None}
    return EncoderWeights(**top, layers=tuple(EncoderLayer(**fields) for fields in layers))  # type: ignore[arg-type]


def _param(declared: EncoderWeights, place: Place) -> Param:
    field, layer = place
    param: Param = getattr(declared if layer is None else declared.layers[layer], field)
    return param


def _stored(array: np.ndarray, dtype: jnp.dtype) -> Matrix:
    if dtype == jnp.int8:
        values, scales = quantise_weight(np.ascontiguousarray(array, np.float32))
        return Int8Matrix(jnp.asarray(values), jnp.asarray(scales))
    return jnp.asarray(array.astype(ml_dtypes.bfloat16 if dtype == jnp.bfloat16 else np.float32))


def _check(checkpoint: Checkpoint, source: Source, wanted: tuple[int, ...]) -> None:
    rows = 0
    for name in source.names:
        info = checkpoint.tensors.get(name)
        if info is None:
            raise CheckpointError(checkpoint.path, "is missing", name)
        shape = info.shape[1:] if source.first_row and len(info.shape) == 2 else info.shape
        if len(shape) != len(wanted) or shape[1:] != wanted[1:]:
            raise CheckpointError(checkpoint.path, f"has shape {list(info.shape)}, not {list(wanted)}", name)
        rows += shape[0]
    if rows != wanted[0]:
        named = ", ".join(source.names)
        raise CheckpointError(checkpoint.path, f"{named} together have {rows} rows, not {wanted[0]}")
