"""GGUF vocabularies give the ids of the tokenizer.json or SentencePiece model that they were made from."""

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from jaxfold.checkpoints.base import GgufVocabulary
from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers import load_tokenizer
from tests.tokenizers import vocabularies as v

MODEL = v.sentencepiece_model("bpe")
BARE = v.changed_model(MODEL, add_dummy_prefix=False)


def load(vocabulary: GgufVocabulary, rows: int = v.ROWS) -> Tokenizer:
    return load_tokenizer(v.Source(gguf=vocabulary).files(), vocab_size=rows)


BPE, BPE_TWIN = load(v.gguf_of(v.byte_level())), v.twin_of(v.byte_level())
SPM = {True: load(v.gguf_of_model(MODEL)), False: load(v.gguf_of_model(BARE))}
SPM_TWIN = {True: v.processor(MODEL), False: v.processor(BARE)}


@pytest.mark.parametrize("text", v.HARD_TEXTS)
def test_hard_texts_give_the_twin_s_ids(text: str) -> None:
    assert BPE.encode(text) == BPE_TWIN.encode(text).ids
    assert SPM[True].encode(text) == SPM_TWIN[True].encode(text)
    assert SPM[False].encode(text) == SPM_TWIN[False].encode(text)


@given(text=st.text(max_size=40), prefix=st.booleans())
def test_any_text_gives_the_twin_s_ids(text: str, prefix: bool) -> None:
    assert BPE.encode(text) == BPE_TWIN.encode(text).ids
    assert SPM[prefix].encode(text) == SPM_TWIN[prefix].encode(text)


@given(parts=st.lists(st.sampled_from([*v.CONTROL, "a", " ", "  ", "\n"]), max_size=10))
def test_parsed_control_tokens_give_the_twin_s_ids(parts: list[str]) -> None:
    assert BPE.encode("".join(parts), parse_special=True) == BPE_TWIN.encode("".join(parts)).ids


def test_special_ids_come_from_the_file() -> None:
    assert (BPE.bos_id, BPE.eos_ids, BPE.add_bos) == (1, {2}, False)
    assert BPE.encode("hi", add_special=True) == BPE.encode("hi")
    both = load(v.gguf_of(v.byte_level(), add_bos=True, add_eos=True))
    assert both.add_bos
    assert both.encode("hi", add_special=True) == [1, *BPE.encode("hi"), 2]
    assert (SPM[True].bos_id, SPM[True].eos_ids, SPM[True].add_bos) == (1, {2}, True)
    assert SPM[True].encode("hi", add_special=True) == [1, *SPM_TWIN[True].encode("hi")]
    silent = load(v.gguf_of_model(MODEL, add_bos=False))
    assert silent.encode("hi", add_special=True) == SPM_TWIN[True].encode("hi")


def test_named_end_ids_are_hidden_whatever_their_type() -> None:
    vocabulary = v.gguf_of(v.byte_level(), token_types=None)
    tokenizer = load(vocabulary)
    assert tokenizer.decode([1, 2, *tokenizer.encode("x")], skip_special=True) == "x"
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]


def test_unused_tokens_are_never_given_and_show_nothing() -> None:
    base = v.gguf_of(v.byte_level())
    padded = dataclasses.replace(
        base,
        tokens=(*base.tokens, "[PAD1]", "[PAD2]"),
        token_types=(*(base.token_types or ()), 5, 5),
    )
    tokenizer = load(padded)
    assert tokenizer.encode("[PAD1]", parse_special=True) == BPE.encode("[PAD1]")
    assert tokenizer.decode([len(base.tokens)]) == ""


def test_a_missing_unknown_piece_is_made() -> None:
    """Some files mark no piece as unknown; SentencePiece cannot do without one."""
    vocabulary = v.gguf_of_model(MODEL)
    types = (3, *(vocabulary.token_types or ())[1:])
    tokenizer = load(dataclasses.replace(vocabulary, token_types=types, unk_id=None))
    assert tokenizer.encode("the 漢") == SPM_TWIN[True].encode("the 漢")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "made-up"}, "'made-up' is not known"),
        ({"pre": ""}, "is not named"),
        ({"merges": None}, "no merges"),
        ({"merges": ("a",)}, "cannot be used"),
        ({"tokens": ()}, "no tokens"),
        ({"model": "t5"}, "'t5' are not supported"),
        ({"model": "bert"}, "'bert' are not supported"),
        ({"token_types": (1, 1)}, "2 token types"),
        ({"token_types": (9,)}, "token types"),
        ({"bos_id": 10**6}, "1000000"),
        ({"eos_id": -1}, "-1"),
        ({"model": "llama"}, "no scores"),
        ({"model": "llama", "scores": (0.0,)}, "1 scores"),
    ],
)
def test_a_broken_vocabulary_is_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        load(v.gguf_of(v.byte_level(), **changes))
    assert "\n" not in str(caught.value)


def test_unknown_types_and_repeated_tokens_are_refused() -> None:
    base = v.gguf_of(v.byte_level())
    with pytest.raises(TokenizerError, match="type 9"):
        load(dataclasses.replace(base, token_types=(9,) * len(base.tokens)))
    with pytest.raises(TokenizerError, match="twice"):
        load(dataclasses.replace(base, tokens=("a",) * len(base.tokens)))
    with pytest.raises(TokenizerError, match="rows"):
        load(base, rows=100)


def test_a_llama_vocabulary_without_all_bytes_is_refused() -> None:
    vocabulary = v.gguf_of_model(MODEL)
    types = list(vocabulary.token_types or ())
    types[types.index(6)] = 1
    with pytest.raises(TokenizerError, match="cannot be used"):
        load(dataclasses.replace(vocabulary, token_types=tuple(types)))


def test_scores_reach_the_library_unchanged() -> None:
    """The order of merges hangs on the scores' exact float32 values."""
    from jaxfold.tokenizers.spm_model import model_from_gguf

    original = sentencepiece_model_pb2.ModelProto()
    original.ParseFromString(MODEL)
    rebuilt = model_from_gguf(v.gguf_of_model(MODEL))
    assert [piece.score for piece in rebuilt.pieces] == [piece.score for piece in original.pieces]
    assert np.asarray([piece.score for piece in rebuilt.pieces], np.float32).size == len(original.pieces)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GgufVocabulary:
    """The vocabulary of the real file, read by the gguf library alone."""
    fields = gguf.GGUFReader(smollm2_path).fields
    value = {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in fields.items() if "ggml" in name}
    return GgufVocabulary(
        model=value["model"],
        pre=value["pre"],
        tokens=tuple(value["tokens"]),
        scores=None,
        token_types=tuple(value["token_type"]),
        merges=tuple(value["merges"]),
        bos_id=value["bos_token_id"],
        eos_id=value["eos_token_id"],
        unk_id=value["unknown_token_id"],
        pad_id=value["padding_token_id"],
        add_bos=value["add_bos_token"],
        add_eos=False,
        add_space_prefix=value["add_space_prefix"],
    )


@pytest.mark.real_model
def test_the_real_smollm2(smollm2: GgufVocabulary) -> None:
    """Against a tokenizer put together by hand from the same vocabulary."""
    vocab = {token: number for number, token in enumerate(smollm2.tokens)}
    merges = [tuple(merge.split(" ")) for merge in smollm2.merges or ()]
    twin = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    splits = [
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    twin.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(splits)
    twin.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = load(smollm2, rows=49152)
    texts = [*v.HARD_TEXTS, *v.CORPUS[:6], "xkqz" * 25_000, " " * 100_000]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == twin.encode(text).ids
        assert tokenizer.decode(ids) == twin.decode(ids, skip_special_tokens=False)
    kinds = zip(smollm2.tokens, smollm2.token_types or (), strict=True)
    twin.add_special_tokens([token for token, kind in kinds if kind == 3])
    prompt = "<|im_start|>user\nHow much is 12 + 345?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(prompt, parse_special=True) == twin.encode(prompt).ids
    assert tokenizer.encode_rendered(prompt.replace("How", "M"), {"M": "How"}) == twin.encode(prompt).ids
    assert tokenizer.encode(prompt, parse_special=True)[:4] == [1, 4093, 198, 2020]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (1, {2}, False)
    assert len(tokenizer.special_tokens) == 17
