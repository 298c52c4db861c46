"""Finding words leftmost first and longest first, and filling markers in."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers.matching import Filled
from jaxfold.tokenizers.matching import LongestMatch
from jaxfold.tokenizers.matching import fill

SHORT = st.text(alphabet="ab<", max_size=4)


@given(words=st.lists(SHORT, max_size=8), text=st.text(alphabet="ab<c", max_size=30))
def test_matches_are_leftmost_and_longest(words: list[str], text: str) -> None:
    longest_first = sorted({word for word in words if word}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    expected = [match.span() for match in pattern.finditer(text)]
    assert list(LongestMatch(words).spans(text, 0, len(text))) == expected


@given(words=st.lists(SHORT, max_size=8), text=st.text(alphabet="ab<c", max_size=20), cut=st.integers(0, 20))
def test_matches_stay_inside_their_part(words: list[str], text: str, cut: int) -> None:
    cut = min(cut, len(text))
    part = [(start + cut, end + cut) for start, end in LongestMatch(words).spans(text[cut:], 0, len(text) - cut)]
    assert list(LongestMatch(words).spans(text, cut, len(text))) == part
    assert list(LongestMatch(words).spans(text, 0, cut)) == list(LongestMatch(words).spans(text[:cut], 0, cut))


def test_markers_are_filled_once() -> None:
    filled = fill("a M1 b M2 M1", {"M1": "[M2]", "M2": "", "M3": "absent"})
    assert filled.text == "a [M2] b  [M2]"
    assert "".join(filled.text[start:end] for start, end in filled.template) == "a  b  "


def test_template_spans_are_what_no_user_wrote() -> None:
    assert fill("MM", {"M": "x"}) == Filled("xx", ())
    assert fill("", {"M": "x"}) == Filled("", ())
    assert fill("ab", {}) == Filled("ab", ((0, 2),))


def test_the_longer_of_two_markers_wins() -> None:
    assert fill("M1 M10", {"M1": "a", "M10": "b"}).text == "a b"


def test_half_a_surrogate_pair_names_its_place() -> None:
    with pytest.raises(TokenizerError, match=r"U\+D83D\) at character 3"):
        fill("ab M", {"M": "\ud83d"})
