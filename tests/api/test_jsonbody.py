"""Bodies: every way to get JSON wrong is one sentence and a 400, and good JSON comes back as it was."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.api.http.jsonbody import MAX_DEPTH
from jaxfold.api.http.jsonbody import parse_json
from jaxfold.api.http.jsonbody import parse_object
from jaxfold.chat.types import RequestError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=5), st.booleans())
def test_good_objects_come_back(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_refusal(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except RequestError as error:
        assert error.status == 400
        assert "\n" not in error.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b'{"a": "\n"}', "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": "\xc3"}', "not UTF-8"),
        ('{"a": "\ud83d"}'.encode("utf-8", "surrogatepass"), "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": [Infinity]}', "Infinity"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e400}', "1e400"),
        (b'{"a": -1e400}', "-1e400"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested too deeply"),
    ],
    ids=lambda value: value[:20].decode("ascii", "replace") if isinstance(value, bytes) else value,
)
def test_what_is_wrong_is_named(body: bytes, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    assert words in caught.value.message
    assert len(caught.value.message) < 200


def test_the_deepest_nesting_that_is_allowed() -> None:
    depth = MAX_DEPTH - 1
    value = parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert list(value) == ["a"]


def test_brackets_in_text_are_no_nesting() -> None:
    text = "[{" * 10_000
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_byte_order_mark_is_no_part_of_the_json() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_key_given_twice_at_the_top() -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(b'{"seed": 1, "stream": {"x": 1, "x": 2}, "seed": 2}')
    assert caught.value.param == "seed"


def test_key_given_twice_further_down_is_json_as_everybody_reads_it() -> None:
    assert parse_object(b'{"a": {"x": 1, "x": 2}}') == {"a": {"x": 2}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"messages": [{"content": "a"}, {"content": "cut \ud83d"}]}', "messages[1].content"),
        (rb'{"messages": [{"content": [{"text": "\uDE00 low"}]}]}', "messages[0].content[0].text"),
        (rb'{"stop": ["\udc00"]}', "stop[0]"),
        (rb'{"metadata": {"\ud800": "x"}}', r"metadata.\ud800"),
        (rb'{"\udfff": 1}', r"\udfff"),
    ],
)
def test_lone_surrogates_are_named_by_their_path(body: bytes, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    assert caught.value.param == param
    caught.value.message.encode("ascii")


def test_surrogate_pairs_are_characters() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00", "b": "\\ud83d"}') == {"a": "\U0001f600", "b": "\\ud83d"}


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1e999]", '"\\ud800"', "[" * 100_000, "[" * 200 + "]" * 200])
def test_json_inside_a_request_is_read_as_strictly(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
