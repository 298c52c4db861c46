from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.stops import MAX_STOP_CHARS
from jaxfold.chat.stops import MAX_STOPS
from jaxfold.chat.stops import ReplyText
from jaxfold.chat.stops import StopCheck
from jaxfold.chat.stops import StopFilter
from jaxfold.chat.stops import StopSet
from jaxfold.chat.stops import check_stops
from jaxfold.chat.types import RequestError
from tests.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
# A small alphabet makes overlaps and near misses common; é has two bytes.
TEXT = st.text("abé", max_size=60)
STOPS = st.lists(st.text("abé", min_size=1, max_size=6), min_size=1, max_size=5)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule itself, slowly: the match that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXT, STOPS, st.lists(st.integers(0, 100), max_size=20))
def test_any_chunking_cuts_at_the_first_match(text: str, stops: list[str], cuts: list[int]) -> None:
    expected, stop = cut(text, stops)
    stream = StopFilter(StopSet(stops))
    shown = ""
    for piece in pieces(text, cuts):
        shown += stream.push(piece)
        assert expected.startswith(shown)
    shown += stream.flush()
    assert (shown, stream.stop) == (expected, stop)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_may_become_a_stop(text: str, stops: list[str]) -> None:
    stream = StopFilter(StopSet(stops))
    shown = ""
    for at, character in enumerate(text, start=1):
        shown += stream.push(character)
        if stream.stop is not None:
            break
        held = text[len(shown) : at]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(TEXT, STOPS, st.lists(st.integers(0, 100), max_size=20))
def test_what_follows_a_match_is_kept(text: str, stops: list[str], cuts: list[int]) -> None:
    stream = StopFilter(StopSet(stops))
    seen = ""
    for piece in pieces(text, cuts):
        seen += piece
        stream.push(piece)
        if stream.stop is not None:
            before, stop = cut(text, stops)
            assert before + (stop or "") + stream.rest == seen
            break


@pytest.mark.parametrize(
    ("stops", "chunks", "shown", "stop"),
    [
        (["gamma"], ["beta gamma! delta"], ["beta "], "gamma"),
        (["gamma"], ["beta ga", "mm", "a!"], ["beta ", "", ""], "gamma"),
        (["gamma"], ["ga", "mmo"], ["", "gammo"], None),
        (["a"], ["a"], [""], "a"),
        (["abcd", "bc"], ["ab", "cd"], ["", "a"], "bc"),
        (["bc", "abc"], ["abc"], [""], "abc"),
        (["aab"], ["aa", "a", "b", "z"], ["", "a", "", ""], "aab"),
        (["\n\n"], ["x\n", "y\n", "\nz"], ["x", "\ny", ""], "\n\n"),
        ([], ["abc"], ["abc"], None),
        (["👍🏽"], ["ok 👍", "🏽"], ["ok ", ""], "👍🏽"),
    ],
)
def test_examples(stops: list[str], chunks: list[str], shown: list[str], stop: str | None) -> None:
    stream = StopFilter(StopSet(stops))
    assert [stream.push(chunk) for chunk in chunks] == shown
    assert stream.stop == stop
    assert stream.push("more") == ("" if stop else "more")


@given(st.lists(st.sampled_from([*b"ab\xc3\xa9\xff", *TOKENIZER.special_tokens.values()]), max_size=40), STOPS)
def test_the_engines_check_agrees_with_what_is_shown(ids: list[int], stops: list[str]) -> None:
    def text() -> ReplyText:
        return ReplyText(TOKENIZER, TOKENIZER.eos_ids, False, frozenset())

    check, reader, stream = StopCheck(text(), StopSet(stops)), text(), StopFilter(StopSet(stops))
    for token_id in ids:
        stream.push(reader.push(token_id))
        assert check(token_id) == (stream.stop is not None)


def test_end_tokens_are_text_only_where_they_are_ignored() -> None:
    end = TOKENIZER.special_tokens["<|im_end|>"]
    think = TOKENIZER.special_tokens["<think>"]
    start = TOKENIZER.special_tokens["<|im_start|>"]

    def shown(ignore_eos: bool, kept: frozenset[int]) -> str:
        text = ReplyText(TOKENIZER, TOKENIZER.eos_ids, ignore_eos, kept)
        return "".join(map(text.push, [97, think, start, end, 98])) + text.flush()

    assert shown(False, frozenset()) == "a<think>b"
    assert shown(True, frozenset()) == "a<think><|im_end|>b"
    assert shown(False, frozenset({start})) == "a<think><|im_start|>b"


def test_an_end_token_that_is_no_control_token_is_not_shown() -> None:
    text = ReplyText(TOKENIZER, frozenset({98}), False, frozenset())
    assert "".join(map(text.push, b"abc")) == "ac"


@pytest.mark.parametrize("stops", [["x"] * (MAX_STOPS + 1), [""], ["x", ""], ["x" * (MAX_STOP_CHARS + 1)]])
def test_lists_of_stop_strings_that_are_refused(stops: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        check_stops(stops)
    assert (caught.value.status, caught.value.param) == (400, "stop")


def test_the_largest_lists_work() -> None:
    stops = ["a" * (MAX_STOP_CHARS - n) + "b" for n in range(1, MAX_STOPS + 1)]
    check_stops(stops)
    stream = StopFilter(StopSet(stops))
    text = "a" * 5000
    assert sum(len(stream.push(character)) for character in text) == len(text) - (MAX_STOP_CHARS - 1)
    assert stream.push("b") == ""
    assert stream.stop == stops[0]
