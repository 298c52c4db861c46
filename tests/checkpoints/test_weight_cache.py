"""The cache of ready weights: exact, private, bounded, and never in the way."""

import os

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from jaxfold.checkpoints.weight_cache import load
from jaxfold.checkpoints.weight_cache import store

KEY = "ab" * 16
MANY = 1 << 30


def arrays(fill: int = 0) -> dict[str, np.ndarray]:
    return {
        "small": np.array([1, 2, 3], np.int8),
        "embedding": (np.arange(512, dtype=np.float32).reshape(32, 16) + fill).astype(ml_dtypes.bfloat16),
        "scale": np.array(2.5, np.float32),
        "turned": np.arange(256, dtype=np.float32).reshape(16, 16).T,
        "empty": np.zeros((0, 4), np.float32),
    }


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_stored_is_loaded(tmp_path):
    folder = tmp_path / "cache"
    assert load(folder, KEY) is None
    assert store(folder, KEY, arrays(), MANY)
    loaded = load(folder, KEY)
    assert loaded is not None
    assert loaded.keys() == arrays().keys()
    for name, expected in arrays().items():
        assert loaded[name].dtype == expected.dtype
        assert loaded[name].shape == expected.shape
        assert loaded[name].tobytes() == expected.tobytes()
        assert not loaded[name].flags.writeable
    assert load(folder, "cd" * 16) is None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_large_arrays_are_aligned_for_use_in_place(tmp_path):
    assert store(tmp_path / "cache", KEY, arrays(), MANY)
    loaded = load(tmp_path / "cache", KEY)
    assert loaded is not None
    assert loaded["embedding"].ctypes.data % 64 == 0
    assert loaded["turned"].ctypes.data % 64 == 0


def test_files_are_plain_safetensors(tmp_path):
    store(tmp_path / "cache", KEY, arrays(), MANY)
    with safe_open(tmp_path / "cache" / f"{KEY}.safetensors", "np") as file:
        assert set(file.keys()) == arrays().keys()
        np.testing.assert_array_equal(file.get_tensor("turned"), arrays()["turned"])


def test_storing_again_replaces(tmp_path):
    folder = tmp_path / "cache"
    store(folder, KEY, arrays(), MANY)
    before = load(folder, KEY)
    store(folder, KEY, arrays(5), MANY)
    after = load(folder, KEY)
    assert before is not None
    assert after is not None
    assert after["embedding"].tobytes() == arrays(5)["embedding"].tobytes()
    # What was mapped before stays what it was.
    assert before["embedding"].tobytes() == arrays()["embedding"].tobytes()
    assert files(folder) == [f"{KEY}.safetensors"]


def test_the_least_recently_used_goes_first(tmp_path):
    folder = tmp_path / "cache"
    keys = [f"{index:032x}" for index in range(4)]
    store(folder, keys[0], arrays(), MANY)
    size = (folder / f"{keys[0]}.safetensors").stat().st_size
    bound = 3 * size + size // 2
    for age, key in enumerate(keys[:3]):
        assert store(folder, key, arrays(), bound)
        os.utime(folder / f"{key}.safetensors", (1000 + age, 1000 + age))
    assert load(folder, keys[0]) is not None  # now the most recent
    assert store(folder, keys[3], arrays(), bound)
    assert [load(folder, key) is not None for key in keys] == [True, False, True, True]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= bound


def test_too_large_is_not_stored_and_drops_nothing(tmp_path):
    folder = tmp_path / "cache"
    assert store(folder, KEY, arrays(), MANY)
    assert not store(folder, "cd" * 16, arrays(), 100)
    assert load(folder, KEY) is not None


def test_every_damaged_byte_is_a_miss_and_deletes_the_file(tmp_path):
    folder = tmp_path / "cache"
    path = folder / f"{KEY}.safetensors"
    store(folder, KEY, arrays(), MANY)
    whole = path.read_bytes()
    expected = {name: array.tobytes() for name, array in arrays().items()}
    for at in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0x11
        path.write_bytes(damaged)
        loaded = load(folder, KEY)
        if loaded is None:
            assert not path.exists()
        else:  # a space of the header's padding, or the like: nothing was lost
            assert {name: array.tobytes() for name, array in loaded.items()} == expected
    for length in range(0, len(whole), 101):
        path.write_bytes(whole[:length])
        assert load(folder, KEY) is None
        assert not path.exists()


def test_a_file_under_another_key_is_a_miss(tmp_path):
    folder = tmp_path / "cache"
    store(folder, KEY, arrays(), MANY)
    other = "cd" * 16
    (folder / f"{KEY}.safetensors").rename(folder / f"{other}.safetensors")
    assert load(folder, other) is None
    assert files(folder) == []


def test_a_directory_that_others_can_write_is_not_trusted(tmp_path):
    folder = tmp_path / "cache"
    store(folder, KEY, arrays(), MANY)
    folder.chmod(0o777)
    assert load(folder, KEY) is None
    assert not store(folder, KEY, arrays(), MANY)
    folder.chmod(0o700)
    assert load(folder, KEY) is not None


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not store(tmp_path / "cache", KEY, arrays(), MANY)
    assert files(tmp_path / "cache") == []
    (tmp_path / "file").touch()
    assert not store(tmp_path / "file", KEY, arrays(), MANY)


def test_what_crashed_writers_left_is_removed(tmp_path):
    folder = tmp_path / "cache"
    store(folder, KEY, arrays(), MANY)
    old, new = folder / ".aa-1.partial", folder / ".bb-2.partial"
    old.touch()
    new.touch()
    os.utime(old, (1000, 1000))
    store(folder, KEY, arrays(), MANY)
    assert files(folder) == [".bb-2.partial", f"{KEY}.safetensors"]


@pytest.mark.parametrize("key", ["", "../../etc", "XYZ", "ab", "AB" * 16])
def test_keys_are_digests(key, tmp_path):
    with pytest.raises(ValueError, match="hex digest"):
        load(tmp_path, key)
    with pytest.raises(ValueError, match="hex digest"):
        store(tmp_path, key, arrays(), MANY)
