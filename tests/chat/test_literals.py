from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.literals import Literals
from jaxfold.chat.literals import TokenGuard
from jaxfold.chat.literals import TokenPattern
from jaxfold.chat.reasoning import KNOWN_MARKERS
from jaxfold.chat.types import RequestError
from tests.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer(added=("<think>", "</think>", "<tool_call>", "<|fim|>", "<b>", "\n\n", "\u2581\u2581"))
GUARD = TokenGuard(TOKENIZER, "{{ '<tool_call>' }}", KNOWN_MARKERS[0])
SPECIAL = list(TOKENIZER.special_tokens)
PIECES = st.sampled_from(
    [*SPECIAL, "<", "|", ">", "<|", "|>", "<|im_", "end|>", "a", "\ufdd0", "\ufdef", "\ufdd1", "é"]
)
TEXTS = st.one_of(st.lists(PIECES).map("".join), st.text())


def ids_of(text: str, literals: Literals) -> list[int]:
    return TOKENIZER.encode_rendered(text, literals.used(text))


@given(TEXTS)
def test_what_a_user_writes_is_never_a_control_token(text: str) -> None:
    literals = Literals(GUARD)
    hidden = literals.hide(text)
    assert literals.show(hidden) == text
    ids = ids_of(hidden, literals)
    assert not any(TOKENIZER.is_control(i) for i in ids)
    assert TOKENIZER.decode(ids) == text


@given(st.lists(TEXTS, max_size=4), st.booleans())
def test_texts_side_by_side_do_not_join_to_a_token(texts: list[str], own_words: bool) -> None:
    literals = Literals(GUARD)
    hidden = "".join(literals.hide(text, own_words=own_words) for text in texts)
    ids = ids_of(hidden, literals)
    assert not any(TOKENIZER.is_control(i) for i in ids)
    assert TOKENIZER.decode(ids) == "".join(texts)


def test_a_text_does_not_complete_what_the_template_began() -> None:
    literals = Literals(GUARD)
    rendered = "<|im_start|>" + "<|im_" + literals.hide("end|> x <|im_") + "end|>"
    assert ids_of(rendered, literals) == [TOKENIZER.special_tokens["<|im_start|>"], *b"<|im_end|> x <|im_end|>"]


@pytest.mark.parametrize(
    ("text", "user", "assistant"),
    [
        ("<|im_end|>", False, False),
        ("<think>", False, True),
        ("<tool_call>", False, True),
        ("<|fim|>", False, True),
        ("<b>", True, True),
    ],
)
def test_which_tokens_stay_tokens(text: str, user: bool, assistant: bool) -> None:
    for own_words, stays in ((False, user), (True, assistant)):
        literals = Literals(GUARD)
        ids = ids_of(literals.hide(f"a{text}b", own_words=own_words), literals)
        assert ids == ([97, TOKENIZER.special_tokens[text], 98] if stays else [*f"a{text}b".encode()])


def test_reasoning_markers_that_are_control_tokens_stay_in_the_history() -> None:
    tokenizer = ByteTokenizer(control=("<s>", "<|im_end|>", "<think>", "</think>"), added=())
    literals = Literals(TokenGuard(tokenizer, "", KNOWN_MARKERS[0]))
    text = literals.hide("<think>x</think>y<|im_end|>", own_words=True)
    ids = tokenizer.encode_rendered(text, literals.used(text))
    assert ids[:3] == [tokenizer.special_tokens["<think>"], 120, tokenizer.special_tokens["</think>"]]
    assert tokenizer.special_tokens["<|im_end|>"] not in ids


def test_markers_are_one_a_text_and_only_the_used_ones_are_handed_on() -> None:
    literals = Literals(GUARD)
    many = literals.hide("x<|im_end|>y" * 500)
    other = literals.hide("<|im_start|>")
    assert list(literals.used(many).values()) == ["<|im_end|>"]
    assert set(literals.used(many + other).values()) == {"<|im_end|>", "<|im_start|>"}
    assert literals.size == 500 * 12 + 12


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert Literals(GUARD).hide("a\ud83db") == "a\ufffdb"


def test_values_are_hidden_all_the_way_down() -> None:
    literals = Literals(GUARD)
    value = {"a": ["<|im_end|>", 1, None, True], "<|im_start|>": {"k": "v"}}
    hidden = literals.hide_value(value, "tools[0]")
    assert "<|" not in repr(hidden)
    assert hidden["a"][1:] == [1, None, True]
    assert ids_of(literals.to_json(hidden), literals) == [
        *b'{"a": ["<|im_end|>", 1, null, true], "<|im_start|>": {"k": "v"}}'
    ]


def test_json_escapes_what_stands_behind_a_marker() -> None:
    tokenizer = ByteTokenizer(control=("<s>", "<|im_end|>", '<|"|>'))
    literals = Literals(TokenGuard(tokenizer, "", None))
    assert literals.show(literals.to_json(literals.hide('x<|"|>y'))) == r'"x<|\"|>y"'
    hidden = literals.hide("\ufdd5")
    assert literals.to_json(hidden, ensure_ascii=True) != '"\\ufdd5"'
    assert literals.show(literals.to_json(hidden, ensure_ascii=True)) == '"\\ufdd5"'


@given(st.lists(PIECES).map("".join))
def test_printing_a_list_keeps_the_markers(text: str) -> None:
    literals = Literals(GUARD)
    printed = literals.unescape(repr([literals.hide(text + "<|im_end|>")]))
    assert "\\ufd" not in printed
    assert TOKENIZER.special_tokens["<|im_end|>"] not in ids_of(printed, literals)


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: Any = "x"
    for _ in range(200):
        value = [value]
    with pytest.raises(RequestError, match="nested deeper") as caught:
        Literals(GUARD).hide_value(value, "tools[3]")
    assert caught.value.param == "tools[3]"


@given(st.sets(st.text("ab<|", min_size=1, max_size=6), max_size=12), st.text("ab<|", max_size=40))
def test_the_longest_token_is_found_at_each_place(tokens: set[str], text: str) -> None:
    literals = Literals(GUARD)
    hidden = TokenPattern(tokens).sub(text, literals)
    expected, at = [], 0
    while at < len(text):
        token = max((t for t in tokens if text.startswith(t, at)), key=len, default=None)
        expected.append(text[at] if token is None else literals.marker(token))
        at += len(token or "x")
    assert hidden == "".join(expected)


def test_letters_are_no_edges() -> None:
    literals = Literals(GUARD)
    assert TokenPattern(["type", "<type>"]).sub_edges("type", literals) == "type"
    assert literals.show(TokenPattern(["<type>"]).sub_edges("> x <", literals)) == "> x <"


def test_thousands_of_tokens_compile() -> None:
    tokens = [f"<unused{n}>" for n in range(6000)] + ["<|" + "x" * 300 + "|>"]
    literals = Literals(GUARD)
    hidden = TokenPattern(tokens).sub("<unused5999><unused60000>" * 500 + "<" * 20_000, literals)
    assert "<unused5999>" not in hidden
    assert hidden.count("<unused60000>") == 500
