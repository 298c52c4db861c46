"""Tiny vocabularies, trained by the libraries themselves, and the texts that are hard on tokenizers."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cache
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from jaxfold.checkpoints.base import GgufVocabulary
from jaxfold.checkpoints.base import TokenizerFiles

ROWS = 2000  # more rows than any vocabulary here has tokens, as embeddings are padded

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? In 1984 it cost $12,345.67!",
    "def main(argv):\n    return {'key': [1, 2, 3]}\n\n\tif x <= y:\n\t\tpass",
    "naïve café, Straße, œuvre; Ελληνικά και русский текст.",
    "日本語のテキストと漢字、かな。 한국어 문장도 있습니다.",
    "user assistant system think tool call start end of text im 0 1 2 3 4 5 6 7 8 9",
    "שלום עולם مرحبا بالعالم 👩‍👩‍👧‍👦 🙂 e\u0301",
] * 20

HARD_TEXTS = [
    "",
    " ",
    "   ",
    "Hello world",
    " leading",
    "trailing ",
    "  two  spaces  everywhere  ",
    "\n",
    "\n\n\tx\r\n  y\t\t",
    "tab\tand\nnewline\r\n",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 tone",
    "漢字かな交じり文。한국어",
    "e\u0301a\u0308\u0323 n\u0303 combining",
    "שלום مرحبا \u202eright to left\u202c",
    "nul\x00inside \x00",
    "control \x01\x02\x1f\x7f\x85",
    "rare 𒀀𐎀 \U0010ffff \ufffd \u2028",
    "don't DON'T we'll I'm 'tis 'ſ",
    "1234567890 12 345 6.78e-9 ½ ²",
    "a_b-c/d\\e|f{g}[h](i)<j>",
    "<0x0A> <0xFF> <",
    "https://example.org/?q=1&r=%20#x",
]

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>")
SPECIAL = CONTROL[:3]


@dataclass(frozen=True)
class Source:
    """A vocabulary in the three forms that a checkpoint may hold it in; see TokenizerFiles."""

    tokenizer_json: bytes | None = None
    sentencepiece: bytes | None = None
    gguf: GgufVocabulary | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def files(self) -> TokenizerFiles:
        return TokenizerFiles(self.tokenizer_json, self.sentencepiece, self.gguf, self.config)


def added(text: str, *, special: bool = False, **flags: bool) -> dict[str, Any]:
    """An added token of a tokenizer.json; the library gives it its id."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": 0, "content": text, "special": special, **plain, **flags}


@cache
def _byte_level() -> str:
    """A byte-level BPE vocabulary with SmolLM2's splits and the control tokens inside the trained vocabulary."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    return str(library.to_str())


def byte_level(*tokens: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The byte-level vocabulary's JSON object with other added tokens and top-level fields."""
    spec: dict[str, Any] = json.loads(_byte_level())
    spec["added_tokens"] += tokens or (*(added(text) for text in CONTROL[3:]), added("  "))
    return {**spec, **changes}


@cache
def byte_fallback() -> dict[str, Any]:
    """A Llama 2 style tokenizer.json: a ▁ before the text, no words, byte pieces for what has no token."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=pieces, show_progress=False)
    library.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    library.train_from_iterator(["plain letters a b c d e f g h i j k l m n o p q r s t u v w x y z é . , 0"], trainer)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    spec: dict[str, Any] = json.loads(library.to_str())
    spec["added_tokens"] = [added(text, special=True) for text in pieces[:3]]
    spec["added_tokens"] += [added(text, special=text in SPECIAL) for text in CONTROL]
    return {**spec, "pre_tokenizer": None}


def dump(spec: Mapping[str, Any]) -> bytes:
    return json.dumps(spec, ensure_ascii=False).encode()


def twin_of(spec: Mapping[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(dump(spec).decode())


def gguf_of(spec: Mapping[str, Any], pre: str = "smollm", **changes: Any) -> GgufVocabulary:
    """A tokenizer.json object's vocabulary as a GGUF file would hold it."""
    library = twin_of(spec)
    tokens = [library.id_to_token(number) for number in range(library.get_vocab_size())]
    kinds = {token["content"]: 3 if token["special"] else 4 for token in spec["added_tokens"]}
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tuple(tokens),
        "scores": None,
        "token_types": tuple(kinds.get(token, 1) for token in tokens),
        "merges": tuple(" ".join(merge) for merge in spec["model"]["merges"]),
        "bos_id": tokens.index("<|im_start|>"),
        "eos_id": tokens.index("<|im_end|>"),
        "unk_id": 0,
        "pad_id": 2,
        "add_bos": False,
        "add_eos": False,
        "add_space_prefix": False,
    }
    return GgufVocabulary(**{**fields, **changes})


@cache
def sentencepiece_model(model_type: str, *, dummy_prefix: bool = True, identity: bool = True) -> bytes:
    """A SentencePiece model. With `identity` text is taken as it is and unknown characters become bytes."""
    out = io.BytesIO()
    plain: dict[str, Any] = {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        model_type=model_type,
        vocab_size=600 if identity else 300,
        hard_vocab_limit=False,
        minloglevel=2,
        character_coverage=0.98,
        add_dummy_prefix=dummy_prefix,
        control_symbols=["<|im_start|>", "<|im_end|>"],
        user_defined_symbols=["<think>", "</think>", "▁▁"],
        **(plain if identity else {}),
    )
    return out.getvalue()


def gguf_of_model(data: bytes, **changes: Any) -> GgufVocabulary:
    """A SentencePiece BPE model's vocabulary as a GGUF file would hold it; user-defined pieces have real spaces."""
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    fields: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": tuple(p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in model.pieces),
        "scores": tuple(piece.score for piece in model.pieces),
        "token_types": tuple(piece.type for piece in model.pieces),
        "merges": None,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 0,
        "pad_id": None,
        "add_bos": True,
        "add_eos": False,
        "add_space_prefix": model.normalizer_spec.add_dummy_prefix,
    }
    return GgufVocabulary(**{**fields, **changes})


def changed_model(data: bytes, **normalizer: Any) -> bytes:
    """The same SentencePiece model with other normaliser settings."""
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    for name, value in normalizer.items():
        setattr(model.normalizer_spec, name, value)
    return bytes(model.SerializeToString())


def processor(data: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=data)
