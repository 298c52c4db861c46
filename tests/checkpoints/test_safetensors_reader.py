"""Hugging Face directories: whole and sharded weights, settings, tokenizer files, templates, multimodal wrappers."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint

BF16 = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
TENSORS = {
    "model.embed_tokens.weight": BF16,
    "model.norm.weight": np.linspace(0, 1, 5, dtype=np.float32),
    "lm_head.weight": np.eye(3, dtype=np.float16),
    "model.steps": np.array(7, np.int64),
}


def shard(directory, **shards):
    """Write named shards and their index."""
    weight_map = {}
    for name, tensors in shards.items():
        save_file(tensors, directory / f"{name}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"{name}.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_are_read_as_stored(tiny_hf):
    checkpoint = open_checkpoint(tiny_hf(TENSORS))
    assert checkpoint.format == "safetensors"
    assert checkpoint.model_type == "llama"
    assert checkpoint.config["hidden_size"] == 8
    stored = {"F32", "BF16", "F16", "I64"}
    assert {info.stored for info in checkpoint.tensors.values()} == stored
    for name, expected in TENSORS.items():
        values = checkpoint.read(name)
        assert values.dtype == expected.dtype
        assert checkpoint.tensors[name].shape == expected.shape
        np.testing.assert_array_equal(values, expected)
        assert not values.flags.writeable


def test_shards_by_index(tiny_hf):
    directory = tiny_hf(None)
    first, second = {"model.norm.weight": TENSORS["model.norm.weight"]}, {"lm_head.weight": TENSORS["lm_head.weight"]}
    shard(directory, one=first, two=second)
    save_file({"unlisted": np.zeros(2, np.float32)}, directory / "other.safetensors")
    checkpoint = open_checkpoint(directory)
    assert set(checkpoint.tensors) == {"model.norm.weight", "lm_head.weight"}
    np.testing.assert_array_equal(checkpoint.read("lm_head.weight"), TENSORS["lm_head.weight"])


def test_shards_without_an_index(tiny_hf):
    directory = tiny_hf(None)
    save_file({"a": np.zeros(1, np.float32)}, directory / "model-00001-of-00002.safetensors")
    save_file({"b": np.ones(1, np.float32)}, directory / "model-00002-of-00002.safetensors")
    assert set(open_checkpoint(directory).tensors) == {"a", "b"}
    save_file({"b": np.ones(1, np.float32)}, directory / "zz.safetensors")
    with pytest.raises(CheckpointError, match=r"zz\.safetensors: tensor 'b': also occurs in model-00002"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors: tensor 'a': is missing"),
        ({"weight_map": {"z": "one.safetensors"}}, "one.safetensors: tensor 'z': is not in this shard"),
        ({"weight_map": {"a": "../hf/one.safetensors"}}, "no plain file name"),
        ({"weight_map": {"a": 5}}, "no plain file name"),
        ({"weight_map": {}}, "has no weight_map"),
        ({}, "has no weight_map"),
        (b"{", "is not valid JSON"),
        (b"[]", "should hold a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}}', "a key occurs twice"),
        (b"\xff\xfe\x00", "is not valid JSON"),
    ],
)
def test_a_bad_index_is_refused(index, words, tiny_hf):
    directory = tiny_hf(None, files={"model.safetensors.index.json": index})
    save_file({"a": np.zeros(1, np.float32)}, directory / "one.safetensors")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(directory)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config.json: is missing"),
        (b"{oops", "config.json: is not valid JSON"),
        ({"hidden_size": 8}, "names no model_type"),
        ({"model_type": "llama", "hidden_size": -1}, "hidden_size should be a positive whole number, not -1"),
        ({"model_type": "llama", "hidden_size": 8.5}, "hidden_size should be"),
        ({"model_type": "llama", "vocab_size": 10**30}, "vocab_size should be"),
        ({"model_type": "llama", "num_hidden_layers": True}, "num_hidden_layers should be"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "NaN is not a value"),
        (b'{"model_type": "llama", "rope_theta": Infinity}', "rope_theta should be a positive number"),
        ({"model_type": "llama", "eos_token_id": "two"}, "eos_token_id should be an id or a list of ids"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, "weights are quantised (awq)"),
        ({"model_type": "llama", "quantization": {"bits": 4}}, "weights are quantised (quantization)"),
    ],
)
def test_a_bad_config_is_refused(config, words, tiny_hf):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tiny_hf(TENSORS, files={"config.json": config}))
    assert words in str(caught.value)


def test_infinity_elsewhere_in_a_config_is_kept(tiny_hf):
    config = b'{"model_type": "llama", "time_step_limit": [0.0, Infinity]}'
    assert open_checkpoint(tiny_hf(TENSORS, files={"config.json": config})).config["time_step_limit"][1] == float("inf")


def test_end_ids_are_the_union(tiny_hf):
    files = {
        "generation_config.json": {"eos_token_id": [5, 7], "temperature": 0.6},
        "tokenizer_config.json": {
            "eos_token": {"content": "<end>"},
            "added_tokens_decoder": {"9": {"content": "<end>"}},
        },
        "tokenizer.json": {"version": "1.0"},
    }
    checkpoint = open_checkpoint(tiny_hf(TENSORS, files=files))
    assert checkpoint.eos_token_ids == (2, 5, 7, 9)
    assert checkpoint.generation_config["temperature"] == 0.6


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens.json": {"<end>": 9}},
        {"tokenizer.json": {"added_tokens": [{"id": 9, "content": "<end>"}]}},
        {"tokenizer.json": {"model": {"vocab": {"<end>": 9}}}},
    ],
)
def test_the_eos_token_is_found_by_its_text(files, tiny_hf):
    files = {"special_tokens_map.json": {"eos_token": "<end>"}} | files
    assert open_checkpoint(tiny_hf(TENSORS, files=files)).eos_token_ids == (2, 9)


def test_tokenizer_files(tiny_hf):
    files = {
        "tokenizer.json": {"model": {"vocab": {}}},
        "tokenizer.model": b"not looked at",
        "tokenizer_config.json": {"bos_token": "<s>", "add_bos_token": True},
        "special_tokens_map.json": {"bos_token": "<other>", "unk_token": "<unk>"},
        "added_tokens.json": {"<x>": 3},
    }
    found = open_checkpoint(tiny_hf(TENSORS, files=files)).tokenizer_files
    assert json.loads(found.tokenizer_json or b"") == {"model": {"vocab": {}}}
    assert found.sentencepiece is None
    assert found.gguf is None
    assert found.config == {
        "bos_token": "<s>",
        "add_bos_token": True,
        "unk_token": "<unk>",
        "added_tokens": {"<x>": 3},
    }


def test_sentencepiece_where_there_is_no_tokenizer_json(tiny_hf):
    found = open_checkpoint(tiny_hf(TENSORS, files={"tokenizer.model": b"proto"})).tokenizer_files
    assert (found.tokenizer_json, found.sentencepiece) == (None, b"proto")


def test_a_broken_sentencepiece_model_is_refused(tiny_hf):
    files = {"tokenizer.model": b"\xff\xff\xff", "tokenizer_config.json": {"eos_token": "</s>"}}
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: is not a SentencePiece model"):
        open_checkpoint(tiny_hf(TENSORS, files=files))


def test_weights_without_tokenizer_open(tiny_hf):
    checkpoint = open_checkpoint(tiny_hf(TENSORS))
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        _ = checkpoint.tokenizer_files


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "plain"}}, "plain"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "d"}, {"name": "x"}]}}, "d"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "r"}]}}, None),
        ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "n\u00e9w".encode()}, "n\u00e9w"),
        ({"chat_template.json": {"chat_template": "processor"}}, "processor"),
        ({}, None),
    ],
)
def test_chat_template(files, template, tiny_hf):
    assert open_checkpoint(tiny_hf(TENSORS, files=files)).chat_template == template


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_of_a_multimodal_model_the_text_model_is_shown(stored, shown, tiny_hf):
    config = {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "text_config": {"model_type": "gemma3_text", "hidden_size": 8},
        "vision_config": {"hidden_size": 99},
    }
    tensors = {
        stored: np.ones(8, np.float32),
        "vision_tower.blocks.weight": np.zeros(2, np.float32),
        "model.vision_tower.blocks.weight": np.zeros(2, np.float32),
        "multi_modal_projector.weight": np.zeros(2, np.float32),
    }
    checkpoint = open_checkpoint(tiny_hf(tensors, files={"config.json": config}))
    assert checkpoint.model_type == "gemma3_text"
    assert checkpoint.config["hidden_size"] == 8
    assert checkpoint.eos_token_ids == (1, 106)
    assert set(checkpoint.tensors) == {shown}
    np.testing.assert_array_equal(checkpoint.read(shown), np.ones(8))


def test_an_unknown_name_is_refused(tiny_hf):
    with pytest.raises(CheckpointError, match=r"tensor 'nothing': is not in the checkpoint"):
        open_checkpoint(tiny_hf(TENSORS)).read("nothing")


def test_the_fingerprint_follows_every_file(tiny_hf):
    directory = tiny_hf(TENSORS, files={"tokenizer.json": {"a": 1}})
    seen = {open_checkpoint(directory).fingerprint}
    assert open_checkpoint(directory).fingerprint in seen
    (directory / "tokenizer.json").write_text('{"a": 22}')
    seen.add(open_checkpoint(directory).fingerprint)
    save_file(TENSORS | {"x": np.zeros(1, np.float32)}, directory / "model.safetensors")
    seen.add(open_checkpoint(directory).fingerprint)
    assert len(seen) == 3
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)  # keeps the times
    assert open_checkpoint(copy).fingerprint in seen
