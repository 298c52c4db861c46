import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.harmony import HarmonySplitter
from jaxfold.chat.harmony import is_harmony
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Thought
from jaxfold.chat.tools.parts import Words

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
SHOWN = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"


def split(chunks: list[str]) -> list[tuple[type[Part], str]]:
    """The parts, neighbours of one kind joined."""
    splitter = HarmonySplitter()
    parts = [part for chunk in chunks for part in splitter.push(chunk)]
    joined: list[tuple[type[Part], str]] = []
    for part in [*parts, *splitter.flush()]:
        assert isinstance(part, Thought | Words)
        before = joined.pop()[1] if joined and joined[-1][0] is type(part) else ""
        joined.append((type(part), before + part.text))
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("plain", [(Words, "plain")]),
        ("a < b <| c", [(Words, "a < b <| c")]),
        (FINAL + "yes", [(Words, "yes")]),
        (ANALYSIS + "hm" + NEXT + FINAL + "yes<|return|>", [(Thought, "hm"), (Words, "yes")]),
        (ANALYSIS + "hm", [(Thought, "hm")]),
        (ANALYSIS + "hm <|en", [(Thought, "hm <|en")]),
        (ANALYSIS + "hm" + FINAL + "yes", [(Thought, "hm"), (Words, "yes")]),
        (ANALYSIS + "a" + NEXT + ANALYSIS + "b" + NEXT + FINAL + "c", [(Thought, "a\nb"), (Words, "c")]),
        (ANALYSIS + "hm" + NEXT + CALL, [(Thought, "hm"), (Words, SHOWN)]),
        (CALL + "<|call|><|start|>assistant" + CALL + "<|call|>", [(Words, SHOWN + SHOWN)]),
        (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", [(Words, SHOWN)]),
        ("<|channel|>commentary<|message|>First." + NEXT + FINAL + "Then.", [(Words, "First.\n\nThen.")]),
        ("<|channel|>ana", []),
        ("<|channel|>" + "x" * 300, [(Words, "<|channel|>" + "x" * 300)]),
    ],
)
def test_messages_in_any_chunks(text: str, expected: list[tuple[type[Part], str]]) -> None:
    for size in (1, 2, 3, 7, 1000):
        assert split([text[at : at + size] for at in range(0, len(text), size)]) == expected, size


PIECES = (ANALYSIS, FINAL, NEXT, CALL, "<|call|>", "<|channel|>", "<|message|>", "<|", "to=", " ", "ab", "\n")


@given(st.lists(st.sampled_from(PIECES), max_size=10), st.integers(1, 9))
def test_chunks_do_not_matter(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    assert split(pieces) == split([text[at : at + size] for at in range(0, len(text), size)]) == split([text])


def test_states_are_told() -> None:
    splitter = HarmonySplitter()
    list(splitter.push(ANALYSIS + "h"))
    assert (splitter.opened, splitter.closed) == (True, False)
    list(splitter.push("m<|end|>"))
    assert (splitter.opened, splitter.closed) == (True, True)
    other = HarmonySplitter()
    list(other.push(FINAL + "yes"))
    list(other.flush())
    assert (other.opened, other.closed) == (False, False)


def test_templates_with_channels() -> None:
    assert is_harmony("{{ '<|channel|>final<|message|>' }}")
    assert not is_harmony("<|message|>")
    assert not is_harmony(None)
