"""Every quantisation type: what `read` gives is, bit for bit, what the gguf library's dequantiser gives."""

from concurrent.futures import ThreadPoolExecutor

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.checkpoints.dequantise import dequantise

NAME = "model.layers.0.mlp.up_proj.weight"
REQUIRED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
OTHERS = [
    "IQ4_NL",
    "IQ4_XS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ1_S",
    "IQ1_M",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
]


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


@pytest.mark.parametrize("name", REQUIRED + OTHERS)
def test_random_blocks_read_as_the_library_dequantises_them(name, tiny_gguf, random_blocks):
    kind = Type[name]
    raw = random_blocks(kind, 24, 512)
    checkpoint = open_checkpoint(tiny_gguf(tensors={"blk.0.ffn_up.weight": (raw, kind)}))
    values = checkpoint.read(NAME)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    assert checkpoint.tensors[NAME].stored == name
    assert checkpoint.tensors[NAME].shape == values.shape == (24, 512)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(bits(values), bits(expected))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_values_come_back_close(name, tiny_gguf, rng):
    weights = rng.standard_normal((16, 64), np.float32)
    raw = gguf.quants.quantize(weights, Type[name])
    checkpoint = open_checkpoint(tiny_gguf(tensors={"blk.0.ffn_up.weight": (raw, Type[name])}))
    values = checkpoint.read(NAME)
    # Half a step of the coarsest grid here: 4 bits over the block's range of at most about 8.
    assert np.abs(values - weights).max() < 0.5
    assert np.corrcoef(values.ravel(), weights.ravel())[0, 1] > 0.99


def test_pieces_join_without_a_seam(random_blocks):
    raw = random_blocks(Type.Q4_1, 3000, 64)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, Type.Q4_1)
    values = dequantise(raw.reshape(-1), Type.Q4_1).reshape(3000, 64)
    np.testing.assert_array_equal(bits(values), bits(expected))


def test_plain_types_keep_their_dtype(tiny_gguf, rng):
    weights = rng.standard_normal((6, 32), np.float32)
    brain = gguf.quants.quantize(weights, Type.BF16)
    checkpoint = open_checkpoint(
        tiny_gguf(
            tensors={
                "blk.0.ffn_up.weight": weights,
                "blk.0.ffn_gate.weight": weights.astype(np.float16),
                "blk.0.ffn_down.weight": (brain, Type.BF16),
            }
        )
    )
    np.testing.assert_array_equal(checkpoint.read(NAME), weights)
    half = checkpoint.read("model.layers.0.mlp.gate_proj.weight")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, weights.astype(np.float16))
    bfloat = checkpoint.read("model.layers.0.mlp.down_proj.weight")
    assert bfloat.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(bfloat, weights.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("name", ["Q8_K", "Q8_1"])
def test_a_type_without_dequantiser_is_refused_by_name(name, tiny_gguf, random_blocks):
    path = tiny_gguf(tensors={"blk.0.ffn_up.weight": (random_blocks(Type[name], 4, 256), Type[name])})
    checkpoint = open_checkpoint(path)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(NAME)
    assert all(part in str(caught.value) for part in (str(path), "blk.0.ffn_up.weight", name))


def test_reading_from_several_threads_gives_the_same_arrays(tiny_gguf, random_blocks):
    kinds = {"blk.0.ffn_up.weight": Type.Q4_1, "blk.1.ffn_up.weight": Type.IQ2_XXS, "blk.1.ffn_gate.weight": Type.Q6_K}
    tensors = {name: (random_blocks(kind, 64, 512), kind) for name, kind in kinds.items()}
    checkpoint = open_checkpoint(tiny_gguf(tensors=tensors))
    names = list(checkpoint.tensors) * 4
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(checkpoint.read, names))
    for name, values in zip(names, together, strict=True):
        np.testing.assert_array_equal(values.view(np.uint8), checkpoint.read(name).view(np.uint8))
