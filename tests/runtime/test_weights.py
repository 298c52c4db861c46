"""Weights from checkpoints: what is missing or misshapen is named, and the cache on disk changes no bit."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.models import Weights
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from tests.models.golden_support import tiny_folder
from tests.tiny_engines import FAMILIES
from tests.tiny_engines import TINY

Arrays = dict[str, np.ndarray]
CACHED = "from the cache of an earlier start"


def weights_of(path: Path, cache: Path | None = None, dtype: str = "bfloat16") -> tuple[Weights, list[str]]:
    """The weights, and what progress was told."""
    told: list[str] = []
    checkpoint = open_checkpoint(path)
    cfg, family = read_config(checkpoint)
    return load_weights(checkpoint, cfg, family, jnp.dtype(dtype), cache, told.append), told


def bits(weights: Weights) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(weights)]


def changed(folder: Path, change: Callable[[Arrays], None]) -> Path:
    """The folder with other tensors in its one file."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def drop(name: str) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, shape: tuple[int, ...]) -> Callable[[Arrays], None]:
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


def hidden(name: str) -> int:
    return int(json.loads((TINY / name / "config.json").read_text())["hidden_size"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FAMILIES)
def test_matrices_have_the_dtype_asked_for_and_vectors_stay_float32(name: str, dtype: str) -> None:
    weights, _ = weights_of(TINY / name, dtype=dtype)
    for leaf in jax.tree.leaves(weights):
        assert leaf.dtype == (jnp.dtype(dtype) if leaf.ndim == 2 else jnp.dtype("float32"))
        assert np.isfinite(np.asarray(leaf, np.float32)).all()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_cache_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    wanted = bits(weights_of(TINY / name)[0])
    cold, told = weights_of(TINY / name, tmp_path / "cache")
    assert bits(cold) == wanted and CACHED not in " ".join(told)
    warm, told = weights_of(TINY / name, tmp_path / "cache")
    assert bits(warm) == wanted and CACHED in told[0] and len(told) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_the_cache_tells_dtypes_and_checkpoints_apart(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tiny_folder("llama", tmp_path)
    for dtype in ("bfloat16", "float32"):
        wanted = bits(weights_of(folder, dtype=dtype)[0])
        assert bits(weights_of(folder, cache, dtype)[0]) == wanted
        assert bits(weights_of(folder, cache, dtype)[0]) == wanted
    before = bits(weights_of(folder, cache)[0])

    def double(tensors: Arrays) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2

    changed(folder, double)
    after, told = weights_of(folder, cache)
    assert CACHED not in " ".join(told)
    assert bits(after) == bits(weights_of(folder)[0]) != before


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_cache_file_is_made_again(damage: str, tmp_path: Path) -> None:
    wanted = bits(weights_of(TINY / "llama", tmp_path)[0])
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(
        {"cut": whole[:-64], "flip": whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:], "empty": b""}[damage]
    )
    found, told = weights_of(TINY / "llama", tmp_path)
    assert bits(found) == wanted and CACHED not in " ".join(told)
    assert file.read_bytes() == whole
    assert CACHED in weights_of(TINY / "llama", tmp_path)[1][0]


def test_a_cache_that_cannot_be_written_or_trusted_costs_nothing_but_time(tmp_path: Path) -> None:
    wanted = bits(weights_of(TINY / "llama")[0])
    (tmp_path / "file").touch()
    assert bits(weights_of(TINY / "llama", tmp_path / "file")[0]) == wanted
    weights_of(TINY / "llama", tmp_path / "cache")
    os.chmod(tmp_path / "cache", 0o777)
    found, told = weights_of(TINY / "llama", tmp_path / "cache")
    assert bits(found) == wanted and CACHED not in " ".join(told)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder = changed(tiny_folder("llama", tmp_path), drop(name))
    with pytest.raises(CheckpointError) as caught:
        weights_of(folder, tmp_path / "cache")
    assert str(caught.value) == f"{folder}: tensor {name!r}: is missing"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
@pytest.mark.parametrize("name", ["self_attn.q_norm.weight", "post_attention_layernorm.weight"])
def test_a_missing_tensor_of_one_family_is_named(family: str, name: str, tmp_path: Path) -> None:
    name = f"model.layers.0.{name}"
    folder = changed(tiny_folder(family, tmp_path), drop(name))
    with pytest.raises(CheckpointError, match=rf"tensor '{name}': is missing"):
        weights_of(folder)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("model.norm.weight", (hidden("llama"), 1), "has shape"),
        ("model.norm.weight", (hidden("llama") + 1,), "rows, not"),
        ("model.layers.0.self_attn.q_proj.weight", (16, hidden("llama") + 1), "has shape"),
        ("model.layers.0.self_attn.v_proj.weight", (3, hidden("llama")), "together have"),
        ("model.embed_tokens.weight", (7, hidden("llama")), "rows, not 288"),
    ],
)
def test_a_wrong_shape_is_named(name: str, shape: tuple[int, ...], words: str, tmp_path: Path) -> None:
    folder = changed(tiny_folder("llama", tmp_path), put(name, shape))
    with pytest.raises(CheckpointError) as caught:
        weights_of(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: ") and name in message and words in message


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"model_type": "mamba"}, "architecture 'mamba' is not supported (known: gemma3"),
        ("llama", {"model_type": "mixtral"}, "architecture 'mixtral' is not supported"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic' is not supported"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "the settings cannot be read"),
        ("llama", {"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ("llama", {"num_key_value_heads": 2}, "do not divide into 2 key-value heads"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers should be a positive whole number, not 0"),
        ("llama", {"num_hidden_layers": 10**9}, "config names 1000000000 layers"),
        ("llama", {"hidden_size": "576"}, "hidden_size should be a positive whole number"),
        ("llama", {"vocab_size": None}, "no usable 'vocab_size'"),
        ("llama", {"rms_norm_eps": [1]}, "rms_norm_eps should be a positive number"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window = True"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window = True"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ("gemma3", {"sliding_window": None}, "no usable 'sliding_window'"),
    ],
)
def test_settings_that_would_be_run_wrongly_are_refused(
    family: str, changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    folder = tiny_folder(family, tmp_path, changes=changes)
    with pytest.raises(CheckpointError) as caught:
        read_config(open_checkpoint(folder))
    message = str(caught.value)
    assert message.startswith((f"{folder}: ", f"{folder / 'config.json'}: "))
    assert words in message and "\n" not in message


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"mlp_bias": False, "partial_rotary_factor": 1.0, "rope_scaling": None}),
        ("llama", {"rope_scaling": {"rope_type": "default"}}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4096}),
    ],
)
def test_settings_that_are_switched_off_do_no_harm(family: str, changes: dict[str, object], tmp_path: Path) -> None:
    found = read_config(open_checkpoint(tiny_folder(family, tmp_path, changes=changes)))[0]
    assert found == read_config(open_checkpoint(TINY / family))[0]
