"""Converted checkpoints: the pytree comes back bit for bit and placed as asked, settings and tokenizer beside it."""

import json
from dataclasses import dataclass
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.checkpoints import orbax_store
from jaxfold.checkpoints.orbax_store import restore_weights
from jaxfold.checkpoints.orbax_store import save_weights


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    fused: jax.Array
    scale: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embedding: jax.Array
    layers: tuple[Layer, ...]
    bias: jax.Array | None = None


def make_weights(rows: int = 32) -> Weights:
    rng = np.random.default_rng(3)
    layers = tuple(
        Layer(jnp.asarray(rng.integers(-128, 128, (rows, 16), np.int8)), jnp.float32(0.5 + index)) for index in range(2)
    )
    return Weights(jnp.asarray(rng.standard_normal((rows, 8)).astype(jnp.bfloat16)), layers)


def abstract(weights: Weights, sharding=None) -> Weights:
    def leaf(value):
        placed = sharding if value.ndim else None
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=placed)

    return jax.tree.map(leaf, weights)


def assert_same(left: Weights, right: Weights) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture
def source(tiny_gguf):
    return open_checkpoint(tiny_gguf())


@pytest.mark.parametrize("shards", [None, 1, 4])
def test_weights_come_back_bit_for_bit(shards, source, tmp_path):
    weights = make_weights()
    save_weights(weights, tmp_path / "out", sidecar_from=source, metadata={}, shards=shards)
    assert_same(restore_weights(tmp_path / "out", abstract(weights)), weights)


def test_weights_are_placed_as_asked(source, tmp_path):
    weights = make_weights()
    save_weights(weights, tmp_path / "out", sidecar_from=source, metadata={})
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("model"))
    restored = restore_weights(tmp_path / "out", abstract(weights, sharding))
    assert_same(restored, weights)
    assert restored.embedding.sharding.is_equivalent_to(sharding, 2)
    # And from two devices back to one.
    save_weights(restored, tmp_path / "again", sidecar_from=source, metadata={})
    assert_same(restore_weights(tmp_path / "again", abstract(weights)), weights)


def test_shards_are_several_files(source, tmp_path):
    weights = make_weights(rows=1 << 16)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    out = tmp_path / "out"
    save_weights(weights, out, sidecar_from=source, metadata={}, shards=4)
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    assert sum(part > size // 20 for part in sizes) >= 4
    # A file is closed by the chunk (an eighth of a shard) that fills it.
    assert max(sizes) < size / 4 * 1.2
    assert_same(restore_weights(out, abstract(weights)), weights)


def test_settings_and_vocabulary_come_along(source, tmp_path):
    out = tmp_path / "out"
    save_weights(make_weights(), out, sidecar_from=source, metadata={"weight_dtype": "bf16", "layout": 3})
    checkpoint = open_checkpoint(out)
    assert checkpoint.format == "orbax"
    assert checkpoint.model_type == source.model_type
    assert checkpoint.config == source.config
    assert checkpoint.generation_config == source.generation_config
    assert checkpoint.chat_template == source.chat_template
    assert checkpoint.eos_token_ids == source.eos_token_ids
    assert checkpoint.tokenizer_files == source.tokenizer_files
    assert checkpoint.metadata == {"weight_dtype": "bf16", "layout": 3}
    assert checkpoint.tensors["layers.1.fused"].shape == (32, 16)
    assert checkpoint.tensors["embedding"].stored == "bfloat16"
    with pytest.raises(CheckpointError, match="restored whole"):
        checkpoint.read("embedding")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", None])
def test_tokenizer_files_come_along(name, tiny_hf, tmp_path):
    files = {"tokenizer_config.json": {"bos_token": "<s>"}} | ({name: b'{"model": {}}'} if name else {})
    source = open_checkpoint(tiny_hf({"a": np.zeros(1, np.float32)}, files=files))
    save_weights(make_weights(), tmp_path / "out", sidecar_from=source, metadata={})
    checkpoint = open_checkpoint(tmp_path / "out")
    if name is None:
        with pytest.raises(CheckpointError, match="has no tokenizer"):
            _ = checkpoint.tokenizer_files
    else:
        assert checkpoint.tokenizer_files == source.tokenizer_files


def test_an_existing_target_is_refused_and_untouched(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    with pytest.raises(CheckpointError, match="already exists"):
        save_weights(make_weights(), out, sidecar_from=source, metadata={})
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_failed_write_leaves_nothing(source, tmp_path):
    with pytest.raises(TypeError):
        save_weights(make_weights(), tmp_path / "out" / "here", sidecar_from=source, metadata={"bad": object()})
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_weights(make_weights(), tmp_path / "file" / "out", sidecar_from=source, metadata={})
    with pytest.raises(ValueError, match="shards"):
        save_weights(make_weights(), tmp_path / "out", sidecar_from=source, metadata={}, shards=0)


def test_another_shape_dtype_or_leaf_is_refused(source, tmp_path):
    weights = make_weights()
    out = tmp_path / "out"
    save_weights(weights, out, sidecar_from=source, metadata={})
    wanted = abstract(weights)
    wrong = {
        "bfloat16 .32, 8. but needed as bfloat16 .32, 9.": jax.ShapeDtypeStruct((32, 9), jnp.bfloat16),
        "needed as float32": jax.ShapeDtypeStruct((32, 8), jnp.float32),
    }
    for words, leaf in wrong.items():
        with pytest.raises(CheckpointError, match=words):
            restore_weights(out, replace(wanted, embedding=leaf))
    with pytest.raises(CheckpointError, match=r"'bias': is not in the converted checkpoint"):
        restore_weights(out, replace(wanted, bias=jax.ShapeDtypeStruct((2,), jnp.float32)))
    with pytest.raises(CheckpointError, match=r"'layers\.1\.fused': is stored but not part of the model"):
        restore_weights(out, replace(wanted, layers=wanted.layers[:1]))


def test_changed_and_lost_weight_files_are_refused_by_name(source, tmp_path):
    weights = make_weights()
    out = tmp_path / "out"
    save_weights(weights, out, sidecar_from=source, metadata={})
    for path in [path for path in (out / "weights").rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=rf"{path.name}: has changed since it was written"):
                restore_weights(out, abstract(weights))
        path.unlink()
        with pytest.raises(CheckpointError, match=rf"{path.name}: is missing"):
            restore_weights(out, abstract(weights))
        path.write_bytes(whole)
    assert_same(restore_weights(out, abstract(weights)), weights)


def test_what_orbax_cannot_restore_is_one_sentence(source, tmp_path, monkeypatch):
    weights = make_weights()
    out = tmp_path / "out"
    save_weights(weights, out, sidecar_from=source, metadata={})

    def fail(*_):
        raise ValueError("first line\nsecond line")

    monkeypatch.setattr(orbax_store, "_read_leaves", fail)
    with pytest.raises(CheckpointError, match=r"weights: cannot be restored \(first line\)$"):
        restore_weights(out, abstract(weights))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"config": []}, "entry 'config' is missing or of another type"),
        ({"eos_token_ids": ["x"]}, "entry 'eos_token_ids' should hold whole numbers"),
        ({"tensors": {"a": {"shape": 3}}}, "tensor 'a': is corrupt"),
        (None, "is not valid JSON"),
    ],
)
def test_a_damaged_marker_is_refused(change, words, source, tmp_path):
    out = tmp_path / "out"
    save_weights(make_weights(), out, sidecar_from=source, metadata={})
    marker = out / "jaxfold.json"
    marker.write_text("{" if change is None else json.dumps(json.loads(marker.read_text()) | change))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(out)
    assert words in str(caught.value)


def test_a_damaged_vocabulary_or_missing_weights_are_refused(source, tmp_path):
    out = tmp_path / "out"
    save_weights(make_weights(), out, sidecar_from=source, metadata={})
    (out / "gguf_vocabulary.json").write_text('{"tokens": []}')
    with pytest.raises(CheckpointError, match="gguf_vocabulary"):
        _ = open_checkpoint(out).tokenizer_files
    (out / "weights").rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="weights: is missing"):
        open_checkpoint(out)
