"""SentencePiece models: ids and text are the library's own, control tokens follow the template rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers import load_tokenizer
from tests.tokenizers import vocabularies as v

MODELS = {
    "bpe": v.sentencepiece_model("bpe"),
    "bpe-bare": v.changed_model(v.sentencepiece_model("bpe"), add_dummy_prefix=False),
    "bpe-trimmed": v.changed_model(v.sentencepiece_model("bpe"), remove_extra_whitespaces=True),
    "unigram": v.sentencepiece_model("unigram"),
    "unigram-normalised": v.sentencepiece_model("unigram", identity=False),
}


def load(data: bytes, rows: int = v.ROWS, **config: Any) -> Tokenizer:
    return load_tokenizer(v.Source(sentencepiece=data, config=config).files(), vocab_size=rows)


LOADED = {name: load(data) for name, data in MODELS.items()}
LIBRARY = {name: v.processor(data) for name, data in MODELS.items()}
NAME = st.sampled_from(sorted(MODELS))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", v.HARD_TEXTS)
def test_ids_are_the_library_s(name: str, text: str) -> None:
    assert LOADED[name].encode(text) == LIBRARY[name].encode(text)


@given(name=NAME, text=st.text(max_size=30))
def test_any_text_gives_the_library_s_ids(name: str, text: str) -> None:
    assert LOADED[name].encode(text) == LIBRARY[name].encode(text)


@given(name=NAME, ids=st.lists(st.integers(0, 999), max_size=12))
@settings(max_examples=300)
def test_decoding_is_the_library_s(name: str, ids: list[int]) -> None:
    """For any ids but bytes, whose faults the library marks one by one, and control tokens, which it leaves out."""
    library = LIBRARY[name]
    ids = [token_id % library.get_piece_size() for token_id in ids]
    ids = [token_id for token_id in ids if not library.is_byte(token_id)]
    plain = [token_id for token_id in ids if not library.is_unknown(token_id)]
    assert LOADED[name].decode(plain, skip_special=True) == library.decode(plain)
    shown = [token_id for token_id in ids if not library.is_control(token_id)]
    assert LOADED[name].decode(shown) == library.decode(shown)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_decode_as_the_library_s(name: str) -> None:
    for text in ("漢字", "🙂 x", " \x00\x00", "\x20a"):
        ids = LIBRARY[name].encode(text)
        if not any(map(LIBRARY[name].is_unknown, ids)):
            assert LOADED[name].decode(ids) == LIBRARY[name].decode(ids)


def test_user_defined_pieces_that_look_like_markup_are_text_in_user_text() -> None:
    tokenizer, library = LOADED["bpe"], LIBRARY["bpe"]
    think = library.piece_to_id("<think>")
    assert think in library.encode("a <think> b")
    assert think not in tokenizer.encode("a <think> b")
    assert tokenizer.encode("a <think> b", parse_special=True) == library.encode("a <think> b")
    assert tokenizer.decode(tokenizer.encode("a <think> b")) == "a <think> b"


def test_user_defined_spaces_are_used_for_user_text() -> None:
    tokenizer, library = LOADED["bpe"], LIBRARY["bpe"]
    assert library.piece_to_id("▁▁") in tokenizer.encode("a  b")
    assert "▁▁" not in tokenizer.special_tokens


def test_text_after_a_control_token_gets_no_space() -> None:
    """As Hugging Face's tokenizers with legacy=false: the space is put only before a text that begins with words."""
    tokenizer, library = LOADED["bpe"], LIBRARY["bpe"]
    bare = LIBRARY["bpe-bare"]
    start = tokenizer.special_tokens["<|im_start|>"]
    assert tokenizer.encode("<|im_start|>the", parse_special=True) == [start, *bare.encode("the")]
    assert tokenizer.encode("the<|im_start|>the", parse_special=True) == [
        *library.encode("the"),
        start,
        *bare.encode("the"),
    ]
    assert tokenizer.encode_rendered("M<|im_start|>", {"M": "the"}) == [*library.encode("the"), start]


def test_prompts_begin_with_bos_unless_told_otherwise() -> None:
    data = MODELS["bpe"]
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = load(data, **names)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (1, {2}, True)
    assert tokenizer.encode("hi", add_special=True) == [1, *tokenizer.encode("hi")]
    assert load(data, **names, add_bos_token=False).encode("hi", add_special=True) == tokenizer.encode("hi")
    both = load(data, **names, add_eos_token=True)
    assert both.encode("hi", add_special=True) == [1, *tokenizer.encode("hi"), 2]
    assert not load(data).add_bos


def test_the_configuration_adds_tokens_past_the_pieces() -> None:
    size = LIBRARY["bpe"].get_piece_size()
    config = {"added_tokens": {"<tool>": size + 1}, "added_tokens_decoder": {str(size): {"content": "<|x|>"}}}
    tokenizer = load(MODELS["bpe"], **config)
    assert tokenizer.encode("<|x|>", parse_special=True) == [size]
    assert tokenizer.token_bytes(size + 1) == b"<tool>"
    assert size not in tokenizer.encode("<|x|>")
    with pytest.raises(TokenizerError, match="of the piece"):
        load(MODELS["bpe"], added_tokens={"<tool>": 5})


def test_flags_of_added_tokens_are_kept() -> None:
    size = LIBRARY["bpe"].get_piece_size()
    entry = {"content": "<|x|>", "special": True, "lstrip": True, "rstrip": True}
    tokenizer = load(MODELS["bpe"], added_tokens_decoder={str(size): entry})
    spaced = tokenizer.encode("the  <|x|> \n the", parse_special=True)
    assert spaced == tokenizer.encode("the<|x|>the", parse_special=True)
    assert tokenizer.encode_rendered("M<|x|>M", {"M": " the "}) == [
        *tokenizer.encode(" the"),
        size,
        *LIBRARY["bpe-bare"].encode("the "),
    ]


def test_broken_models_are_refused() -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(MODELS["bpe"])
    with pytest.raises(TokenizerError, match="rows"):
        load(MODELS["bpe"], rows=10)
    for data in (b"", b"\xff\xff\xff", b"not a model at all", MODELS["bpe"][:1000]):
        with pytest.raises(TokenizerError):
            load(data)
    model.pieces[1].type = 2
    with pytest.raises(TokenizerError, match="cannot be used"):
        load(model.SerializeToString())
    model.ParseFromString(MODELS["bpe"])
    model.pieces[0].type = 1
    with pytest.raises(TokenizerError, match="unknown piece"):
        load(model.SerializeToString())
    model.ParseFromString(MODELS["bpe"])
    model.trainer_spec.treat_whitespace_as_suffix = True
    with pytest.raises(TokenizerError, match="after its words"):
        load(model.SerializeToString())
