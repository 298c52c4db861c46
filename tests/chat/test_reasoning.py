import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.reasoning import KNOWN_MARKERS
from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.reasoning import ReasoningSplitter
from jaxfold.chat.reasoning import find_markers
from jaxfold.chat.reasoning import named_efforts
from jaxfold.chat.reasoning import template_effort

THINK = KNOWN_MARKERS[0]
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<", "</thi", "nk>", "\n", " ", "a", "bc"]), max_size=12)


def split(chunks: list[str], *, open_at_start: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(THINK, open_at_start)
    parts = [*map(splitter.push, chunks), splitter.flush()]
    return "".join(part.reasoning for part in parts), "".join(part.answer for part in parts)


@pytest.mark.parametrize(
    ("text", "open_at_start", "reasoning", "answer"),
    [
        ("<think>\nSum.\n</think>\n\nFour.", False, "Sum.", "Four."),
        ("Sum.\n</think>\n\nFour.", True, "Sum.", "Four."),
        ("\n <think>x</think> y", False, "x", " y"),
        ("<think></think>y", False, "", "y"),
        ("<think>\n\n</think>\n\ny", False, "", "y"),
        ("<think>never closed \n", False, "never closed", ""),
        ("cut </thi", True, "cut </thi", ""),
        ("plain", False, "", "plain"),
        ("  plain\n", False, "", "  plain\n"),
        ("<thin", False, "", "<thin"),
        ("<thing>", False, "", "<thing>"),
        ("use <think> tags </think>", False, "", "use <think> tags </think>"),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        ("<think>a\n\n b</think>\n", False, "a\n\n b", ""),
        ("", False, "", ""),
        ("", True, "", ""),
        ("\n" * 300 + "<think>", False, "", "\n" * 300 + "<think>"),
    ],
)
def test_examples_in_any_chunks(text: str, open_at_start: bool, reasoning: str, answer: str) -> None:
    for size in (1, 2, 3, 7, 1000):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(chunks, open_at_start=open_at_start) == (reasoning, answer), size


@given(PIECES, st.booleans(), st.integers(1, 9))
def test_chunks_do_not_matter(pieces: list[str], open_at_start: bool, size: int) -> None:
    text = "".join(pieces)
    whole = split([text], open_at_start=open_at_start)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert split(pieces, open_at_start=open_at_start) == split(chunks, open_at_start=open_at_start) == whole
    if open_at_start and "</think>" not in text:
        assert whole == (text.strip(), "")


def test_states_are_told() -> None:
    splitter = ReasoningSplitter(THINK, False)
    assert not splitter.opened
    splitter.push("<think>")
    assert (splitter.opened, splitter.closed) == (True, False)
    splitter.push("</think>x")
    assert (splitter.opened, splitter.closed) == (True, True)
    assert not ReasoningSplitter(THINK, False).opened
    assert ReasoningSplitter(THINK, True).opened


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    splitter = ReasoningSplitter(THINK, True)
    assert splitter.push("a b").reasoning == "a b"
    assert splitter.push(" c</").reasoning == " c"
    assert splitter.push("d").reasoning == "</d"


def test_markers_come_from_the_template_or_the_vocabulary() -> None:
    assert find_markers("... '</think>' ...", {}) == THINK
    assert find_markers(None, {"<think>": 1, "</think>": 2}) == THINK
    assert find_markers("x", {"[THINK]": 1, "[/THINK]": 2}) == ReasoningMarkers("[THINK]", "[/THINK]")
    assert find_markers("x", {"<think>": 1}) is None
    assert find_markers(None, {}) is None


@pytest.mark.parametrize(
    ("named", "level", "passed"),
    [
        (("low", "medium", "xhigh"), "high", "xhigh"),
        (("low", "medium", "xhigh"), "max", "xhigh"),
        (("low", "medium", "xhigh"), "minimal", "low"),
        (("low", "high", "max"), "medium", "high"),
        (("low", "high", "max"), "xhigh", "max"),
        (("low", "high"), "xhigh", "xhigh"),
        (("low", "high"), "none", "none"),
        ((), "high", "xhigh"),
        ((), "max", "xhigh"),
        ((), "minimal", "low"),
        ((), "medium", "medium"),
    ],
)
def test_efforts(named: tuple[str, ...], level: str, passed: str) -> None:
    assert template_effort(level, named) == passed


def test_the_levels_a_template_names() -> None:
    assert named_efforts("""{% if e == "high" or e in ['low', 'lowest'] %} max """) == ("low", "high")
    assert named_efforts(None) == ()
