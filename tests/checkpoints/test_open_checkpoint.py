"""The door: what is opened is decided by what is there, and what is not a model is refused in one sentence."""

import shutil

import numpy as np
import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint


def test_a_file_a_directory_and_a_string_open_alike(tiny_gguf):
    path = tiny_gguf()
    assert open_checkpoint(path).fingerprint == open_checkpoint(path.parent).fingerprint
    assert open_checkpoint(str(path)).format == "gguf"


def test_a_gguf_file_needs_no_suffix(tiny_gguf, tmp_path):
    assert open_checkpoint(shutil.move(tiny_gguf(), tmp_path / "blob")).format == "gguf"


def test_image_projectors_and_stray_settings_do_not_count(tiny_gguf):
    path = tiny_gguf()
    shutil.copy(path, path.with_name("mmproj-model.gguf"))
    path.with_name("config.json").write_text("{}")
    assert open_checkpoint(path.parent).format == "gguf"


def test_two_gguf_models_are_one_too_many(tiny_gguf):
    path = tiny_gguf()
    shutil.copy(path, path.with_name("other.gguf"))
    with pytest.raises(CheckpointError, match=r"one GGUF model.*other\.gguf, tiny\.gguf"):
        open_checkpoint(path.parent)


def test_what_is_no_model(tmp_path, tiny_hf):
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    nothing = tmp_path / "nothing.gguf"
    nothing.touch()
    weights = tiny_hf({"a": np.zeros(1, np.float32)})
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "config.json").write_text('{"model_type": "llama"}')
    (torch / "pytorch_model.bin").write_bytes(b"x")
    cases = {
        tmp_path / "missing": "there is no such file or directory",
        empty: "holds no model",
        text: "is not a GGUF file",
        nothing: "is not a GGUF file",
        weights / "model.safetensors": "give the directory",
        torch: "found PyTorch .bin files",
    }
    for path, words in cases.items():
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
