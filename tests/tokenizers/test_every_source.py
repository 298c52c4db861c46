"""What holds for every kind of vocabulary: round trips, control tokens, rendered templates, detokenisation."""

import threading
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.tokenizers import Tokenizer
from jaxfold.tokenizers import TokenizerError
from tests.tokenizers import vocabularies as v
from tests.tokenizers.conftest import KINDS

KIND = st.sampled_from(sorted(KINDS))
# Text that can complete no control token, so that a rendered template has only the template's own.
HARMLESS = st.text(alphabet=st.sampled_from("ab z1\n\t é漢🙂\u0301\x00"), max_size=8)
ANY_TEXT = st.text(max_size=30)
PARTS = st.lists(st.tuples(st.sampled_from(["text", "control", "literal"]), HARMLESS, st.integers(0, 1)), max_size=8)


def markers(tokenizer: Tokenizer) -> list[str]:
    """The control tokens that are written as text in templates."""
    return [text for text in tokenizer.special_tokens if text.startswith("<") and text != "<unk>"]


@pytest.mark.parametrize("text", v.HARD_TEXTS)
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


@pytest.mark.parametrize("text", ["a" * 100_000, "xkqz" * 25_000, " " * 100_000, "漢" * 100_000, "1" * 100_000])
def test_long_text_without_spaces_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(kind=KIND, text=ANY_TEXT.filter(lambda text: "▁" not in text))
def test_any_text_comes_back(all_tokenizers: Mapping[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = all_tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_in_user_text_are_text(tokenizer: Tokenizer) -> None:
    for text in markers(tokenizer):
        sentence = f"say {text}{text} twice, {text}"
        ids = tokenizer.encode(sentence)
        assert not set(ids) & set(tokenizer.special_tokens.values())
        assert tokenizer.decode(ids, skip_special=True) == sentence


@given(kind=KIND, parts=st.lists(st.sampled_from([*v.CONTROL, "<s>", "<unk>", "<", "|>", " ", "\n", "im_end", "▁"])))
def test_no_user_text_gives_a_control_token(
    all_tokenizers: Mapping[str, Tokenizer], kind: str, parts: list[str]
) -> None:
    tokenizer = all_tokenizers[kind]
    assert not set(tokenizer.encode("".join(parts))) & set(tokenizer.special_tokens.values())


def test_control_tokens_are_parsed_on_request(tokenizer: Tokenizer) -> None:
    for text in markers(tokenizer):
        token_id = tokenizer.special_tokens[text]
        assert tokenizer.encode(text, parse_special=True) == [token_id]
        assert tokenizer.encode(f"a{text}b", parse_special=True).count(token_id) == 1
        assert tokenizer.token_bytes(token_id) == text.encode()


def test_think_is_shown_and_im_end_is_not(tokenizer: Tokenizer) -> None:
    shown, hidden = tokenizer.special_tokens["<think>"], tokenizer.special_tokens["<|im_end|>"]
    assert not tokenizer.is_control(shown)
    assert tokenizer.is_control(hidden)
    assert tokenizer.decode([shown, hidden], skip_special=True) == "<think>"
    assert tokenizer.decode([shown, hidden]) == "<think><|im_end|>"


@given(kind=KIND, parts=PARTS)
@settings(max_examples=300)
def test_a_rendered_template_equals_its_plain_text(
    all_tokenizers: Mapping[str, Tokenizer], kind: str, parts: list[tuple[str, str, int]]
) -> None:
    """Where no user text holds a control token, marking it as user text changes nothing."""
    tokenizer = all_tokenizers[kind]
    control = ["<|im_start|>", "<think>"]
    rendered, plain, literals = "", "", {}
    for number, (what, text, which) in enumerate(parts):
        if what == "literal":
            marker = f"\ue123{number}\ue124"
            literals[marker] = text
            rendered += marker
        else:
            rendered += control[which] if what == "control" else text
        plain += control[which] if what == "control" else text
    assert tokenizer.encode_rendered(rendered, literals) == tokenizer.encode(plain, parse_special=True)
    assert tokenizer.encode_rendered(plain, {}) == tokenizer.encode(plain, parse_special=True)


@given(kind=KIND, attack=st.lists(st.sampled_from([*v.CONTROL, "<|im_", "end|>", "M1", " x "]), min_size=1))
def test_user_text_cannot_break_out_of_a_template(
    all_tokenizers: Mapping[str, Tokenizer], kind: str, attack: list[str]
) -> None:
    tokenizer = all_tokenizers[kind]
    start, end = tokenizer.special_tokens["<|im_start|>"], tokenizer.special_tokens["<|im_end|>"]
    user = "".join(attack)
    ids = tokenizer.encode_rendered("<|im_start|>user\nM1<|im_end|>\nM1", {"M1": user, "M2": "never there"})
    assert [token_id for token_id in ids if token_id in set(tokenizer.special_tokens.values())] == [start, end]
    # A Llama 2 tokenizer.json puts a space after every control token, so spaces are not compared.
    whole = f"<|im_start|>user\n{user}<|im_end|>\n{user}"
    assert tokenizer.decode(ids).replace(" ", "") == whole.replace(" ", "")


def test_a_token_across_template_and_user_text_is_no_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_rendered("<|im_M|>", {"M": "end"})
    assert tokenizer.special_tokens["<|im_end|>"] not in ids
    assert tokenizer.decode(ids) == "<|im_end|>"


@given(kind=KIND, ids=st.lists(st.integers(0, v.ROWS + 50), max_size=40), skip=st.booleans(), keep=st.booleans())
@settings(max_examples=300)
def test_pieces_concatenate_to_the_whole_text(
    all_tokenizers: Mapping[str, Tokenizer], kind: str, ids: list[int], skip: bool, keep: bool
) -> None:
    tokenizer = all_tokenizers[kind]
    kept = [tokenizer.special_tokens["<|im_end|>"]] if keep else []
    detokenizer = tokenizer.detokenizer(skip_special=skip, keep=kept)
    pieces = [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]
    shown = [token_id for token_id in ids if not (skip and tokenizer.is_control(token_id)) or token_id in kept]
    assert "".join(pieces) == tokenizer.decode(shown)
    if not keep:
        assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip)
    # Apart from the space before the first word, the text is what the bytes of all ids say.
    whole = b"".join(map(tokenizer.token_bytes, shown)).decode("utf-8", errors="replace")
    assert "".join(pieces).lstrip(" ") == whole.lstrip(" ")


@given(kind=KIND, text=ANY_TEXT.filter(lambda text: "▁" not in text and "\ufffd" not in text))
def test_no_piece_shows_half_a_character(all_tokenizers: Mapping[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = all_tokenizers[kind]
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in tokenizer.encode(text)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert detokenizer.flush() == ""
    assert "".join(pieces) == text


def test_an_unfinished_character_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x🙂")
    detokenizer = tokenizer.detokenizer()
    text = "".join(detokenizer.push(token_id) for token_id in ids[:-1])
    assert text + detokenizer.flush() == "x\ufffd"


def test_kept_control_tokens_are_shown(tokenizer: Tokenizer) -> None:
    start, end = tokenizer.special_tokens["<|im_start|>"], tokenizer.special_tokens["<|im_end|>"]
    detokenizer = tokenizer.detokenizer(keep=[end])
    assert [detokenizer.push(start), detokenizer.push(end), detokenizer.flush()] == ["", "<|im_end|>", ""]


def test_rows_without_a_token_show_nothing(tokenizer: Tokenizer) -> None:
    for token_id in (v.ROWS - 1, v.ROWS, v.ROWS + 10_000):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.decode([token_id]) == ""
        assert not tokenizer.is_control(token_id)


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "ok \udfff"])
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(TokenizerError, match="half of a surrogate pair"):
        tokenizer.encode(text)
    with pytest.raises(TokenizerError, match="half of a surrogate pair"):
        tokenizer.encode_rendered("<think>M", {"M": text})


def test_text_must_be_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(TypeError):
        tokenizer.encode(b"bytes")  # type: ignore[arg-type]


def test_threads_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    expected = [tokenizer.encode(text) for text in v.HARD_TEXTS]
    results: list[list[list[int]]] = []
    threads = [
        threading.Thread(target=lambda: results.append([tokenizer.encode(text) for text in v.HARD_TEXTS]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_many_markers_take_linear_time(tokenizer: Tokenizer) -> None:
    """Thousands of messages are filled in; a quadratic search would run into the test's time limit."""
    literals = {f"\ue123{number:x}\ue124": f"[text {number}]" for number in range(5_000)}
    rendered = "".join(f"<|im_start|>{marker}<|im_end|>" for marker in literals)
    ids = tokenizer.encode_rendered(rendered, literals)
    assert ids.count(tokenizer.special_tokens["<|im_end|>"]) == 5_000
    assert tokenizer.decode(ids, skip_special=True).replace("] [", "][") == "".join(literals.values())
