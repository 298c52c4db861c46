"""Models on a mesh: where weights go, and what is refused."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.decoder import Weights
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.convert import convert
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.memory import free_bytes
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.placement import ONE_DEVICE
from jaxfold.runtime.placement import place
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.runtime.weights import tree_bytes
from tests.tiny_engines import TINY


def weights_of(path: Path, dtype: str, count: int, cache_dir: Path | None = None) -> Weights:
    checkpoint = open_checkpoint(path)
    cfg, family = read_config(checkpoint)
    return load_weights(checkpoint, cfg, family, jnp.dtype(dtype), cache_dir, place=place(cfg, count))


def parts(array: jax.Array) -> list[np.ndarray]:
    return [np.asarray(shard.data) for shard in sorted(array.addressable_shards, key=lambda s: s.device.id)]


def test_each_device_gets_its_own_rows() -> None:
    whole, split = weights_of(TINY / "llama", "float32", 1), weights_of(TINY / "llama", "float32", 2)
    cfg, _ = read_config(open_checkpoint(TINY / "llama"))
    heads, kv, dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
    full = np.asarray(whole.layers[0].qkv)
    first, second = parts(split.layers[0].qkv)
    # 9 query heads on 3 key-value heads: two of these and their six on one device, the rest and zeros on the other.
    assert first.shape == second.shape == (10 * dim, cfg.hidden_size)
    assert np.array_equal(first[: 6 * dim], full[: 6 * dim])
    assert np.array_equal(second[: 3 * dim], full[6 * dim : 9 * dim]) and not second[3 * dim : 6 * dim].any()
    assert np.array_equal(first[6 * dim : 8 * dim], full[heads * dim : (heads + 2) * dim])
    assert np.array_equal(second[8 * dim : 9 * dim], full[(heads + kv + 2) * dim :])
    for norm in parts(split.layers[0].attn_norm):
        assert np.array_equal(norm, np.asarray(whole.layers[0].attn_norm))
    on = place(cfg, 2)
    here = [leaf.addressable_shards[0].data for leaf in jax.tree.leaves(split)]
    assert tree_bytes(here) == tree_bytes(on.local_shapes(cfg, jnp.dtype("float32")))
    assert tree_bytes(split) == tree_bytes(on.weight_shapes(cfg, jnp.dtype("float32")))


@pytest.mark.parametrize(("kept", "dtype"), [("int8", "int8"), ("f32", "bfloat16")])
def test_a_converted_model_is_split_alike(kept: str, dtype: str, tmp_path: Path) -> None:
    convert(TINY / "qwen2", tmp_path / "copy", dtype=kept)
    found, wanted = (weights_of(path, dtype, 2) for path in (tmp_path / "copy", TINY / "qwen2"))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.dtype, a.shape, a.sharding) == (b.dtype, b.shape, b.sharding)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_converted_weights_on_disk_serve_any_number_of_devices(tmp_path: Path) -> None:
    weights_of(TINY / "llama", "bfloat16", 1, tmp_path)
    kept = sorted(tmp_path.iterdir())
    found, wanted = weights_of(TINY / "llama", "bfloat16", 4, tmp_path), weights_of(TINY / "llama", "bfloat16", 4)
    assert sorted(tmp_path.iterdir()) == kept
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_what_cannot_be_split_is_refused_in_one_sentence() -> None:
    cfg, _ = read_config(open_checkpoint(TINY / "gemma3"))
    with pytest.raises(CapacityError, match=r"--tp 5 needs 5 devices, but there are 4 here \(JAX_NUM_CPU_DEVICES=5"):
        place(cfg, 5)
    with pytest.raises(CapacityError, match=r"--tp 4 has no work for every device: the model has 2 attention heads"):
        place(cfg, 4)
    with pytest.raises(CapacityError, match="--tp 5"):
        load_engine(EngineOptions(model=TINY / "gemma3", tp=5))
    assert place(cfg, 1) is ONE_DEVICE


def test_devices_share_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxfold.runtime.memory._cgroup", {"memory.max": 5_000_000, "memory.current": 2_000_000}.get)
    assert (free_bytes(), free_bytes(2)) == (3_000_000, 1_500_000)

    class Card:
        def __init__(self, used: int) -> None:
            self.used = used

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 100, "bytes_in_use": self.used}

    monkeypatch.setattr(jax, "devices", lambda: [Card(10), Card(30), Card(90)])
    assert (free_bytes(), free_bytes(2)) == (90, 70), "the fullest of the devices in use decides"
