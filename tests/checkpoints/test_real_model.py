"""The real SmolLM2 file: settings, names, and values that are the gguf library's own."""

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest

from jaxfold.checkpoints import open_checkpoint
from jaxfold.checkpoints.gguf_header import read_header

pytestmark = pytest.mark.real_model


def test_settings_of_smollm2(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    expected = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_bias": False,
    }
    assert {key: checkpoint.config[key] for key in expected} == expected
    assert len(checkpoint.tensors) == 272
    assert all(name.startswith("model.") for name in checkpoint.tensors)
    assert checkpoint.eos_token_ids == (2,)
    assert "<|im_start|>" in (checkpoint.chat_template or "")
    vocabulary = checkpoint.tokenizer_files.gguf
    assert vocabulary is not None
    assert (vocabulary.model, vocabulary.pre, len(vocabulary.tokens)) == ("gpt2", "smollm", 49152)
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.add_bos) == (1, 2, False)


def test_values_of_smollm2(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    header = read_header(smollm2_path)
    with ThreadPoolExecutor(2) as pool:
        values = dict(zip(checkpoint.tensors, pool.map(checkpoint.read, checkpoint.tensors), strict=True))
    assert sum(array.size for array in values.values()) == 134_515_008
    for name, stored in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
    }.items():
        place = header.tensors[stored]
        raw = np.frombuffer(header.data, np.uint8, place.nbytes, place.offset).reshape(-1, place.row_bytes)
        np.testing.assert_array_equal(values[name], gguf.quants.dequantize(raw, place.type))
    # Rows of a head: stored as 0, 32, 1, 33, ...; read as 0, 1, 2, ...
    place = header.tensors["blk.3.attn_k.weight"]
    raw = np.frombuffer(header.data, np.uint8, place.nbytes, place.offset).reshape(-1, place.row_bytes)
    rows = gguf.quants.dequantize(raw, place.type).reshape(3, 32, 2, 576)
    heads = values["model.layers.3.self_attn.k_proj.weight"].reshape(3, 2, 32, 576)
    np.testing.assert_array_equal(heads[:, 0], rows[:, :, 0])
    np.testing.assert_array_equal(heads[:, 1], rows[:, :, 1])
