"""GGUF metadata and names as Hugging Face would have them, and the converter's changes to the weights undone."""

import numpy as np
import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint

GEMMA_NORMS = {
    f"blk.{layer}.{name}.weight": size
    for layer in range(2)
    for name, size in {
        "attn_q_norm": 16,
        "attn_k_norm": 16,
        "post_attention_norm": 64,
        "post_ffw_norm": 64,
    }.items()
}


def interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of a llama's q and k, written out row by row."""
    half = weights.shape[0] // heads // 2
    rows = []
    for head in range(heads):
        for index in range(half):
            rows.append(weights[head * 2 * half + index])
            rows.append(weights[head * 2 * half + half + index])
    return np.stack(rows)


@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (4, 2), (6, 1)])
def test_llama_rows_come_back_in_hugging_face_order(heads, kv, tiny_gguf, rng):
    query = rng.standard_normal((heads * 16, 64), np.float32)
    key = rng.standard_normal((kv * 16, 64), np.float32)
    bias = rng.standard_normal(kv * 16).astype(np.float32)
    path = tiny_gguf(
        heads=heads,
        kv=kv,
        tensors={
            "blk.1.attn_q.weight": interleave(query, heads),
            "blk.1.attn_k.weight": interleave(key, kv),
            "blk.1.attn_k.bias": interleave(bias, kv),
            "blk.1.attn_v.weight": key,
        },
    )
    checkpoint = open_checkpoint(path)
    np.testing.assert_array_equal(checkpoint.read("model.layers.1.self_attn.q_proj.weight"), query)
    np.testing.assert_array_equal(checkpoint.read("model.layers.1.self_attn.k_proj.weight"), key)
    np.testing.assert_array_equal(checkpoint.read("model.layers.1.self_attn.k_proj.bias"), bias)
    np.testing.assert_array_equal(checkpoint.read("model.layers.1.self_attn.v_proj.weight"), key)


def test_the_interleaving_is_the_reshape_that_the_converter_uses(rng):
    weights = rng.standard_normal((48, 5), np.float32)
    reshaped = weights.reshape(3, 2, 8, 5).swapaxes(1, 2).reshape(48, 5)
    np.testing.assert_array_equal(interleave(weights, 3), reshaped)


def test_quantised_rows_are_reordered_before_they_are_dequantised(tiny_gguf, rng):
    import gguf

    kind = gguf.GGMLQuantizationType.Q8_0
    query = rng.standard_normal((64, 64), np.float32)
    stored = gguf.quants.quantize(interleave(query, 4), kind)
    checkpoint = open_checkpoint(tiny_gguf(tensors={"blk.0.attn_q.weight": (stored, kind)}))
    plain = gguf.quants.dequantize(gguf.quants.quantize(query, kind), kind)
    np.testing.assert_array_equal(checkpoint.read("model.layers.0.self_attn.q_proj.weight"), plain)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_other_families_rows_stay(architecture, tiny_gguf, rng):
    query = rng.standard_normal((64, 64), np.float32)
    checkpoint = open_checkpoint(tiny_gguf(architecture, tensors={"blk.0.attn_q.weight": query}))
    np.testing.assert_array_equal(checkpoint.read("model.layers.0.self_attn.q_proj.weight"), query)


def test_llama_config_and_names(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf())
    assert checkpoint.format == "gguf"
    assert checkpoint.model_type == "llama"
    assert checkpoint.config == {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "vocab_size": 12,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 0,
    }
    layer = {
        "input_layernorm": (64,),
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "post_attention_layernorm": (64,),
        "mlp.gate_proj": (96, 64),
        "mlp.up_proj": (96, 64),
        "mlp.down_proj": (64, 96),
    }
    expected = {f"model.layers.{index}.{name}.weight": shape for index in range(2) for name, shape in layer.items()}
    expected |= {"model.embed_tokens.weight": (12, 64), "model.norm.weight": (64,), "lm_head.weight": (12, 64)}
    assert {name: info.shape for name, info in checkpoint.tensors.items()} == expected
    assert checkpoint.chat_template == "{{ messages }}"


def test_tied_embeddings_and_qwen2_bias(tiny_gguf, rng):
    bias = {f"blk.{layer}.attn_{part}.bias": np.ones(64, np.float32) for layer in range(2) for part in "qkv"}
    checkpoint = open_checkpoint(tiny_gguf("qwen2", tied=True, tensors=bias))
    assert checkpoint.model_type == "qwen2"
    assert checkpoint.config["tie_word_embeddings"] is True
    assert checkpoint.config["attention_bias"] is True
    assert "lm_head.weight" not in checkpoint.tensors
    assert checkpoint.read("model.layers.1.self_attn.v_proj.bias").shape == (64,)


def test_qwen3_head_norms(tiny_gguf):
    norms = {f"blk.{layer}.attn_{part}_norm.weight": np.ones(16, np.float32) for layer in range(2) for part in "qk"}
    checkpoint = open_checkpoint(tiny_gguf("qwen3", tensors=norms))
    assert checkpoint.model_type == "qwen3"
    np.testing.assert_array_equal(checkpoint.read("model.layers.1.self_attn.q_norm.weight"), np.ones(16))
    assert "model.layers.0.self_attn.k_norm.weight" in checkpoint.tensors


def test_gemma3_settings_and_norms(tiny_gguf, rng):
    norms = {name: rng.standard_normal(size).astype(np.float32) for name, size in GEMMA_NORMS.items()}
    stored = {name: values + np.float32(1) for name, values in norms.items()}
    fields = {
        "gemma3.attention.sliding_window": 512,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.final_logit_softcapping": 30.0,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }
    checkpoint = open_checkpoint(tiny_gguf("gemma3", tied=True, tensors=stored, fields=fields))
    assert checkpoint.model_type == "gemma3_text"
    expected = {
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 16.0,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert {key: checkpoint.config[key] for key in expected} == expected
    names = {
        "blk.0.attn_q_norm.weight": "model.layers.0.self_attn.q_norm.weight",
        "blk.0.post_attention_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.1.post_ffw_norm.weight": "model.layers.1.post_feedforward_layernorm.weight",
    }
    for stored_name, name in names.items():
        np.testing.assert_allclose(checkpoint.read(name), norms[stored_name], atol=3e-7)
    assert "model.layers.0.pre_feedforward_layernorm.weight" in checkpoint.tensors


def test_gemma_norms_of_bfloat16_checkpoints_come_back_exactly(tiny_gguf, rng):
    import ml_dtypes

    weights = rng.standard_normal(64).astype(ml_dtypes.bfloat16).astype(np.float32)
    checkpoint = open_checkpoint(tiny_gguf("gemma3", tensors={"output_norm.weight": weights + np.float32(1)}))
    np.testing.assert_array_equal(checkpoint.read("model.norm.weight"), weights)


def test_the_largest_gemma3_scales_attention_by_its_hidden_size(tiny_gguf):
    pads = {f"blk.{layer}.attn_norm.weight": np.ones(64, np.float32) for layer in range(62)}
    checkpoint = open_checkpoint(tiny_gguf("gemma3", tensors=pads, fields={"gemma3.block_count": 62}))
    assert checkpoint.config["query_pre_attn_scalar"] == 64 / 4


def test_rope_factors_become_a_setting(tiny_gguf):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    checkpoint = open_checkpoint(tiny_gguf(tensors={"rope_freqs.weight": factors}))
    assert checkpoint.config["rope_freq_factors"] == factors.tolist()
    assert not any("rope" in name for name in checkpoint.tensors)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight.*F32 \[8\]"):
        open_checkpoint(tiny_gguf(tensors={"rope_freqs.weight": factors[:5]}))


def test_yarn_fields_are_kept(tiny_gguf):
    fields = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 32,
        "qwen3.rope.scaling.yarn_beta_fast": 32.0,
    }
    assert open_checkpoint(tiny_gguf("qwen3", fields=fields)).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32.0,
    }


def test_a_mixture_of_experts_does_not_pass_for_its_dense_family(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf(fields={"llama.expert_count": 8}))
    assert checkpoint.model_type == "llama_moe"
    assert checkpoint.config["num_local_experts"] == 8


def test_an_unknown_architecture_keeps_its_name(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf("mamba"))
    assert checkpoint.model_type == "mamba"
    assert checkpoint.config == {"model_type": "mamba"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"llama.embedding_length": None}, "lacks the metadata key 'llama.embedding_length'"),
        ({"llama.attention.head_count": 0}, "head_count' should be one positive whole number, not 0"),
        ({"llama.attention.head_count_kv": [1, 2]}, "head_count_kv' should be one positive whole number"),
        ({"llama.attention.head_count": "four"}, "not str"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "should be a positive number, not nan"),
        ({"llama.rope.freq_base": float("inf")}, "should be a positive number, not inf"),
        ({"llama.block_count": 4_000_000_000}, "block_count"),
        ({"llama.block_count": 1_000_000}, "claims 1000000 layers but holds"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "should hold 12 numbers"),
    ],
)
def test_impossible_metadata_is_refused(fields, words, tiny_gguf):
    path = tiny_gguf(fields=fields)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_per_layer_lists_of_one_value_are_that_value(tiny_gguf):
    assert (
        open_checkpoint(tiny_gguf(fields={"llama.attention.head_count_kv": [2, 2]})).config["num_key_value_heads"] == 2
    )


def test_rows_that_make_no_heads_are_refused(tiny_gguf):
    path = tiny_gguf(tensors={"blk.0.attn_q.weight": np.ones((63, 64), np.float32)})
    with pytest.raises(CheckpointError, match=r"q_proj.*heads of even size"):
        open_checkpoint(path).read("model.layers.0.self_attn.q_proj.weight")


def test_an_unknown_name_is_refused(tiny_gguf):
    with pytest.raises(CheckpointError, match=r"tensor 'model\.nothing': is not in the checkpoint"):
        open_checkpoint(tiny_gguf()).read("model.nothing")


def test_vocabulary_of_a_bpe_model(tiny_gguf):
    vocabulary = open_checkpoint(tiny_gguf()).tokenizer_files.gguf
    assert vocabulary is not None
    assert vocabulary.model == "gpt2"
    assert vocabulary.pre == "smollm"
    assert vocabulary.tokens[:4] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "a")
    assert vocabulary.token_types == (3, 3, 3, *[1] * 9)
    assert vocabulary.merges == ("a b",)
    assert vocabulary.scores is None
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.pad_id) == (1, 0, None, None)
    assert (vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_space_prefix) == (False, False, False)


def test_sentencepiece_vocabularies_add_bos_and_a_space_unless_told_otherwise(tiny_gguf):
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [float(index) for index in range(12)],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.padding_token_id": 0xFFFFFFFF,
    }
    vocabulary = open_checkpoint(tiny_gguf(fields=fields)).tokenizer_files.gguf
    assert vocabulary is not None
    assert (vocabulary.add_bos, vocabulary.add_space_prefix, vocabulary.pad_id) == (True, True, None)
    assert vocabulary.scores == tuple(map(float, range(12)))
    assert vocabulary.merges is None
    fields |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    vocabulary = open_checkpoint(tiny_gguf(fields=fields)).tokenizer_files.gguf
    assert vocabulary is not None
    assert (vocabulary.add_bos, vocabulary.add_space_prefix) == (False, False)


def test_llama3_pre_tokenizers_add_bos(tiny_gguf):
    vocabulary = open_checkpoint(tiny_gguf(fields={"tokenizer.ggml.pre": "llama-bpe"})).tokenizer_files.gguf
    assert vocabulary is not None
    assert vocabulary.add_bos


def test_end_ids_are_the_declared_ones_and_known_control_tokens(tiny_gguf):
    tokens = ["<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|im_end|>", *"abcdefg"]
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 5}
    # <|endoftext|> is not declared here; <|im_end|> (4) and later are of type 1, ordinary text.
    fields["tokenizer.ggml.token_type"] = [3, 3, 3, 4, *[1] * 8]
    assert open_checkpoint(tiny_gguf(fields=fields)).eos_token_ids == (1, 2, 3, 5)
    fields |= {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 6, "tokenizer.ggml.eom_token_id": 7}
    fields["tokenizer.ggml.eos_token_ids"] = [8, 9, 99]
    checkpoint = open_checkpoint(tiny_gguf(fields=fields))
    assert checkpoint.eos_token_ids == (0, 1, 2, 3, 6, 7, 8, 9)
    assert checkpoint.generation_config["eos_token_id"] == [0, 1, 2, 3, 6, 7, 8, 9]


def test_a_file_without_vocabulary_opens_but_has_no_tokenizer(tiny_gguf):
    names = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
    checkpoint = open_checkpoint(tiny_gguf(fields={f"tokenizer.ggml.{name}": None for name in names}))
    assert checkpoint.eos_token_ids == ()
    with pytest.raises(CheckpointError, match="holds no vocabulary"):
        _ = checkpoint.tokenizer_files


def test_recommended_sampling_settings(tiny_gguf):
    fields = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.top_p": 0.95}
    config = open_checkpoint(tiny_gguf(fields=fields)).generation_config
    assert (config["temperature"], config["top_k"], config["top_p"]) == (0.6, 20, 0.95)


def test_parts_are_one_checkpoint(tiny_gguf, tmp_path):
    tiny_gguf(name="tiny.gguf", split_max_tensors=8)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert len(parts) == 3
    by_first, by_last, by_directory = (open_checkpoint(path) for path in (parts[0], parts[-1], tmp_path))
    assert by_first.config == by_last.config == by_directory.config
    assert len(by_first.tensors) == 21
    for name in by_first.tensors:
        np.testing.assert_array_equal(by_first.read(name), by_last.read(name))
    assert by_first.fingerprint == by_last.fingerprint
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"tiny-00002-of-00003\.gguf: is missing"):
        open_checkpoint(parts[0])


def test_a_renamed_part_is_refused(tiny_gguf, tmp_path):
    tiny_gguf(name="tiny.gguf", split_max_tensors=8)
    alone = tmp_path / "alone.gguf"
    (tmp_path / "tiny-00001-of-00003.gguf").rename(alone)
    with pytest.raises(CheckpointError, match="is one of 3 parts"):
        open_checkpoint(alone)


def test_the_fingerprint_follows_the_file(tiny_gguf):
    path = tiny_gguf()
    before = open_checkpoint(path).fingerprint
    assert open_checkpoint(path).fingerprint == before
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert open_checkpoint(path).fingerprint != before
