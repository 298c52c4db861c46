"""tokenizer.json: ids are the library's own, whatever flags its added tokens have."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers import load_tokenizer
from tests.tokenizers import vocabularies as v

FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
NORMALIZERS: list[dict[str, Any] | None] = [
    None,
    {"type": "NFC"},
    {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]
PIECES = st.sampled_from(["<a>", "<b>", "<a>b", "<|im_end|>", "  ", " ", "\n", "x", "_", "é", "e\u0301", "1", "<", ">"])


def load(spec: dict[str, Any], rows: int = v.ROWS, **config: Any) -> Tokenizer:
    return load_tokenizer(v.Source(tokenizer_json=v.dump(spec), config=config).files(), vocab_size=rows)


@pytest.mark.parametrize("spec", [v.byte_level(), v.byte_fallback()], ids=["byte-level", "byte-fallback"])
@pytest.mark.parametrize("text", v.HARD_TEXTS)
def test_ids_and_text_are_the_library_s(spec: dict[str, Any], text: str) -> None:
    tokenizer, library = load(spec), v.twin_of(spec)
    ids = tokenizer.encode(text)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)


flagged_token = st.fixed_dictionaries({flag: st.booleans() for flag in (*FLAGS, "special")})


@given(
    first=flagged_token,
    second=flagged_token,
    normalizer=st.sampled_from(NORMALIZERS),
    pieces=st.lists(PIECES, max_size=12),
)
@settings(max_examples=300)
def test_parsed_control_tokens_are_the_library_s(
    first: dict[str, bool], second: dict[str, bool], normalizer: dict[str, Any] | None, pieces: list[str]
) -> None:
    tokens = (v.added("<a>", **first), v.added("<b>", **second), v.added("<a>b"), v.added("  "))
    spec = v.byte_level(*tokens, normalizer=normalizer)
    tokenizer, library = load(spec), v.twin_of(spec)
    text = "".join(pieces)
    assert tokenizer.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids


@given(parts=st.lists(st.tuples(st.booleans(), st.sampled_from(["<a>", "<b>", " ", "\n x", "y"])), max_size=8))
def test_stripped_spaces_are_the_user_s_too(parts: list[tuple[bool, str]]) -> None:
    """A token with `rstrip` swallows the spaces that follow it, from the template or from the user."""
    spec = v.byte_level(v.added("<a>", rstrip=True, special=True), v.added("<b>", lstrip=True))
    tokenizer = load(spec)
    rendered, plain, literals = "", "", {}
    for number, (user, text) in enumerate(parts):
        user = user and not text.startswith("<")
        literals.update({f"\ue123{number}\ue124": text} if user else {})
        rendered += f"\ue123{number}\ue124" if user else text
        plain += text
    expected = v.twin_of(spec).encode(plain, add_special_tokens=False).ids
    assert tokenizer.encode_rendered(rendered, literals) == expected


def test_ordinary_added_tokens_are_used_for_user_text() -> None:
    """Runs of spaces, digits and words that are stored as added tokens are text that the model was trained on."""
    words = ("    ", "\n\n", "7", "covid")
    tokenizer = load(v.byte_level(*(v.added(word) for word in words), v.added("<tool>")))
    library = v.twin_of(v.byte_level(*(v.added(word) for word in words)))
    for word in words:
        assert tokenizer.encode(f"a{word}b") == library.encode(f"a{word}b").ids
        assert word not in tokenizer.special_tokens
    assert "<tool>" in tokenizer.special_tokens


def test_a_control_token_inside_the_vocabulary_is_not_spelled_by_merges() -> None:
    """Even where merges lead to a control token, and where whole words are looked up before merging."""
    spec = v.byte_level()
    vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
    for left, right in (("<", "s"), ("<s", ">")):
        vocab[left + right] = len(vocab)
        merges.append([left, right])
    spec["added_tokens"].append(v.added("<s>", special=True))
    spec["model"]["ignore_merges"] = True
    spec["pre_tokenizer"] = None
    tokenizer = load(spec)
    assert v.twin_of({**spec, "added_tokens": []}).encode("<s>").ids == [vocab["<s>"]]
    assert tokenizer.encode("<s>") == [vocab["<s"], vocab[">"]]
    assert tokenizer.encode("<s>", parse_special=True) == [vocab["<s>"]]


def test_the_post_processor_is_what_goes_around_a_prompt() -> None:
    spec = v.byte_level()
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    tokenizer = load(spec, bos_token="<|im_start|>")
    assert tokenizer.add_bos
    assert tokenizer.encode("hi", add_special=True) == [1, *tokenizer.encode("hi")]
    assert tokenizer.encode("", add_special=True) == [1]
    without = load(spec, bos_token={"content": "<|im_start|>"}, add_bos_token=False)
    assert not without.add_bos
    assert without.encode("hi", add_special=True) == without.encode("hi")


def test_the_configuration_adds_bos_and_eos() -> None:
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer = load(v.byte_level(), **names, add_bos_token=True, add_eos_token=True)
    assert tokenizer.encode("hi", add_special=True) == [1, *tokenizer.encode("hi"), 2]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (1, {2}, True)
    assert not load(v.byte_level(), **names).add_bos


def test_end_ids_are_joined_and_kept_inside_the_rows() -> None:
    files = v.Source(tokenizer_json=v.dump(v.byte_level()), config={"eos_token": "<|im_end|>"}).files()
    assert load_tokenizer(files, vocab_size=v.ROWS, eos_ids=[0, v.ROWS, 2]).eos_ids == {0, 2}


def test_the_configuration_adds_tokens_and_flags() -> None:
    base = v.byte_level()
    size = v.twin_of(base).get_vocab_size()
    entry = {"content": "<extra>", "special": True, "rstrip": True}
    tokenizer = load(base, added_tokens_decoder={str(size): entry}, additional_special_tokens=["<think>"])
    assert tokenizer.special_tokens["<extra>"] == size
    assert tokenizer.encode("<extra> a", parse_special=True) == [size, *tokenizer.encode("a")]
    assert tokenizer.is_control(tokenizer.special_tokens["<think>"])


def test_control_tokens_without_a_row_are_text() -> None:
    """Checkpoints exist whose tokenizer knows an image token that the text model has no row for."""
    spec = v.byte_level(v.added("<image>"))
    rows = v.twin_of(spec).get_vocab_size() - 1
    tokenizer = load(spec, rows=rows)
    assert "<image>" not in tokenizer.special_tokens
    assert max(tokenizer.encode("<image>", parse_special=True)) < rows


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    with pytest.raises(TokenizerError, match="the model has only 300 rows"):
        load(v.byte_level(), rows=300)


def test_truncation_and_padding_of_the_file_are_off() -> None:
    spec = v.byte_level()
    expected = load(spec).encode("one two three four")
    spec["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    assert load(spec).encode("one two three four") == expected


def test_unknown_characters_may_give_the_unknown_token() -> None:
    spec = v.byte_fallback()
    spec["model"]["byte_fallback"] = False
    tokenizer = load(spec)
    unknown = tokenizer.special_tokens["<unk>"]
    assert unknown in tokenizer.encode("漢")
    assert unknown in tokenizer.encode_rendered("<|im_start|>M", {"M": "漢"})


def test_metaspace_drops_the_first_piece_s_marks() -> None:
    spec = v.byte_fallback()
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    spec["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    tokenizer, library = load(spec), v.twin_of(spec)
    for text in ("plain letters", "a b", "x  y"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == library.decode(ids) == text
        parsed = tokenizer.encode(f"<think>{text}<think>a", parse_special=True)
        assert parsed == library.encode(f"<think>{text}<think>a", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": None}, "no decoder"),
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "WordPiece"),
        ({"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0}}, "Strip"),
        ({"decoder": []}, "cannot be used"),
        ({"model": None}, "no model"),
        ({"model": {"type": "BPE"}}, "no model"),
        ({"model": {"type": "Unigram", "vocab": ["a"], "unk_id": 0}}, "no model"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "cannot be used"),
        ({"model": {"type": "BPE", "vocab": {"<|im_end|>": 0}, "merges": [[1, 2]]}}, "merge"),
        ({"added_tokens": 7}, "no list"),
        ({"added_tokens": [{"id": 3}]}, "added token"),
        ({"pre_tokenizer": {"type": "Nonsense"}}, "cannot be used"),
    ],
)
def test_a_broken_file_is_one_clear_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        load({**v.byte_level(), **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(v.Source(tokenizer_json=data).files(), vocab_size=10)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "<a>"}}},
        {"added_tokens_decoder": {"5": 7}},
        {"added_tokens_decoder": [1]},
        {"added_tokens": {"<a>": "five"}},
        {"added_tokens": {"<a>": -1}},
        {"bos_token": 3},
    ],
)
def test_a_broken_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError):
        load(v.byte_level(), **config)


def test_exactly_one_source_is_needed() -> None:
    for files in (v.Source(), v.Source(tokenizer_json=b"{}", sentencepiece=b"x")):
        with pytest.raises(TokenizerError, match="no vocabulary, or more than one"):
            load_tokenizer(files.files(), vocab_size=10)


def test_secret_names_stay_secret() -> None:
    """Two tokenizers of one file give the same ids, and no id's bytes show a name that was put in for the library."""
    data = json.loads(v.dump(v.byte_level()))
    one, other = load(data), load(data)
    text = "<|im_start|>a<think>"
    assert one.encode(text, parse_special=True) == other.encode(text, parse_special=True)
    assert not any(b"\xee\x80\x80" in one.token_bytes(token_id) for token_id in range(v.ROWS))


def test_a_single_word_is_judged_by_what_stands_beside_it_between_other_tokens() -> None:
    first = {"lstrip": False, "rstrip": False, "normalized": True, "single_word": True, "special": False}
    spec = v.byte_level(v.added("<a>", **first), v.added("<a>b"))
    tokenizer, library = load(spec), v.twin_of(spec)
    for text in ("<a>b<a>", "<a><a>b", "<a>b<a><a>b", "b<a>", "<a>b <a>x", "<a>b<a>x"):
        assert tokenizer.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids, text
