"""Writes the tiny encoders as GGUF files with llama.cpp's conventions, so that readers can be compared.

The conventions: both families are of the architecture "bert"; a RoBERTa position table loses the rows before the first
position; WordPiece pieces that begin a word carry U+2581 and the others lose their "##"; Unigram is called "t5".
"""

import base64
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_writer import read_weights
from gguf_writer import storage

POOLING = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}


def write_encoder_gguf(folder: Path, path: Path, pooling: str, stored: str = "F32") -> None:
    """Write the Hugging Face directory `folder` as the GGUF file `path`, matrices stored as `stored`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    offset = 0 if config["model_type"] == "bert" else config["pad_token_id"] + 1
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(POOLING[pooling])
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (add_wordpiece if config["model_type"] == "bert" else add_unigram)(writer, tokenizer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, weight in sorted(read_weights(folder).items()):
        if name == "embeddings.position_embeddings.weight":
            weight = weight[offset:]
        kind = gguf.GGMLQuantizationType.F32 if name.startswith("embeddings.p") else storage(weight, stored)
        data = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, f"llama.cpp has no name for {name}"
        writer.add_tensor(stored_name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_wordpiece(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    vocab = tokenizer["model"]["vocab"]
    control = {token["content"] for token in tokenizer["added_tokens"]}
    tokens, types = [], []
    for text in sorted(vocab, key=vocab.__getitem__):
        types.append(gguf.TokenType.CONTROL if text in control else gguf.TokenType.NORMAL)
        plain = text if text in control else text[2:] if text.startswith("##") else "\u2581" + text
        tokens.append(plain)
    for number in range(len(tokens), config["vocab_size"]):
        tokens.append(f"[PAD{number}]")
        types.append(gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_unk_token_id(vocab["[UNK]"])
    writer.add_bos_token_id(vocab["[CLS]"])
    writer.add_sep_token_id(vocab["[SEP]"])


def add_unigram(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], _: dict[str, Any]) -> None:
    pieces = tokenizer["model"]["vocab"]
    special = {"<unk>": gguf.TokenType.UNKNOWN, "<mask>": gguf.TokenType.USER_DEFINED}
    control = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = [
        special.get(text, gguf.TokenType.CONTROL) if text in control else gguf.TokenType.NORMAL for text, _ in pieces
    ]
    charsmap = tokenizer["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    writer.add_tokenizer_model("t5")
    writer.add_token_list([text for text, _ in pieces])
    writer.add_token_scores([score for _, score in pieces])
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_precompiled_charsmap(base64.b64decode(charsmap))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(1)
