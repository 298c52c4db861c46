"""Encoders: tiny random BERT and XLM-RoBERTa checkpoints, and what transformers computes from them and from MiniLM."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex
from tokenizers import Tokenizer
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers
from transformers import AutoModel
from transformers import BertConfig
from transformers import XLMRobertaConfig

SENTENCES = (
    "A man is eating food.",
    "The keeper wrote down the wind, the oil and the boats, and then 3 or 4 things that surprised him.",
    "Caf\u00e9 \u706f\u53f0 na\u00efve \ufb01sh,\ttabs  and   spaces ",
    "x",
    "for year in range(1871, 1931): print(year)",
)
LONG = " ".join(["The lamp was lit at dusk and the boats came home."] * 36)
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# Small rules instead of SentencePiece's usual ones, whose compiled form takes 240 kB.
RULES = "\n".join(f"{ord(a):X}\t{' '.join(f'{ord(c):X}' for c in b)}" for a, b in {"\t": " ", "\ufb01": "fi"}.items())


def make_encoders(out: Path, corpus: Path, minilm: Path | None) -> None:
    """Write the tiny checkpoints and all outputs under `out`; MiniLM's only where its directory is given."""
    torch.set_num_threads(1)
    make_bert(out, corpus)
    make_xlm_roberta(out, corpus)
    if minilm is not None:
        tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
        model = AutoModel.from_pretrained(minilm, dtype=torch.float32)
        save_outputs(out / "minilm.golden.safetensors", model, tokenizer, "mean", (*SENTENCES, LONG))


def make_bert(out: Path, corpus: Path) -> None:
    folder = fresh(out / "bert")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([corpus.read_text(encoding="utf-8")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = BertConfig(vocab_size=tokenizer.get_vocab_size() + 4, max_position_embeddings=64, pad_token_id=0, **SIZES)
    write(folder, config, tokenizer, "mean", seed=11)
    save_outputs(out / "bert.golden.safetensors", AutoModel.from_pretrained(folder), tokenizer, "mean", SENTENCES)


def make_xlm_roberta(out: Path, corpus: Path) -> None:
    folder = fresh(out / "xlm_roberta")
    proto = sentencepiece_model_pb2.ModelProto.FromString(train_unigram(corpus, folder))
    pieces = [(piece.piece, piece.score) for piece in proto.pieces[3:]]
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces, ("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    config = XLMRobertaConfig(
        vocab_size=len(vocab), max_position_embeddings=130, type_vocab_size=1, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, layer_norm_eps=1e-5, **SIZES,
    )  # fmt: skip
    write(folder, config, tokenizer, "cls", seed=12)
    save_outputs(out / "xlm_roberta.golden.safetensors", AutoModel.from_pretrained(folder), tokenizer, "cls", SENTENCES)


def train_unigram(corpus: Path, folder: Path) -> bytes:
    """A SentencePiece model of 260 pieces: <unk>, <s>, </s> and then the text's own."""
    rules, model = folder / "rules.tsv", io.BytesIO()
    rules.write_text(RULES + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.read_text(encoding="utf-8").splitlines()), model_writer=model, vocab_size=260,
        model_type="unigram", normalization_rule_tsv=str(rules), num_threads=1, minloglevel=2,
    )  # fmt: skip
    rules.unlink()
    return model.getvalue()


def fresh(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, config: Any, tokenizer: Tokenizer, pooling: str, seed: int) -> None:
    """The checkpoint in sentence-transformers' layout, with weights large enough for every part to matter."""
    torch.manual_seed(seed)
    model = AutoModel.from_config(config)
    state = {
        name: value for name, value in model.state_dict().items() if "pooler" not in name and value.is_floating_point()
    }
    for name, value in state.items():
        spread = 0.2 if value.ndim == 1 else 1.5 / value.shape[-1] ** 0.5
        state[name] = torch.randn(value.shape) * spread + (1.0 if name.endswith("LayerNorm.weight") else 0.0)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = json.loads(config.to_json_string(use_diff=False))
    keys = {*SIZES, "vocab_size", "max_position_embeddings", "type_vocab_size", "pad_token_id", "layer_norm_eps"}
    kept = {key: settings[key] for key in sorted({*keys, "hidden_act", "model_type"})}
    kind = "sentence_transformers.models"
    files: dict[str, Any] = {
        "config.json": kept,
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{kind}.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kind}.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{kind}.Normalize"},
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": SIZES["hidden_size"],
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_outputs(path: Path, model: Any, tokenizer: Tokenizer, pooling: str, texts: tuple[str, ...]) -> None:
    """Ids and the unit vector of each text, every text alone: `ids.N` int32[tokens], `vector.N` float32[hidden]."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model.eval()
    found: dict[str, np.ndarray] = {}
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
        vector = (hidden.mean(0) if pooling == "mean" else hidden[0]).numpy()
        found[f"ids.{number}"] = np.asarray(ids, np.int32)
        found[f"vector.{number}"] = (vector / np.linalg.norm(vector)).astype(np.float32)
    save_numpy(found, path, metadata={"texts": json.dumps(texts)})
