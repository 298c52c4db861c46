"""Sorting the pieces of a reply into blocks."""

from hypothesis import given
from hypothesis import strategies as st

from jaxfold.api.exchange.blocks import Blocks
from jaxfold.api.exchange.blocks import Closed
from jaxfold.api.exchange.blocks import Grown
from jaxfold.api.exchange.blocks import Opened
from jaxfold.api.exchange.blocks import Step
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart


def run(*pieces: Piece, cut: bool = False) -> tuple[list[tuple[str, str]], list[Step]]:
    """(kind, text) of every block, after a check of the steps' grammar."""
    blocks = Blocks()
    steps = [step for piece in pieces for step in blocks.push(piece)] + blocks.finish(cut)
    open_index = None
    grown = [""] * len(blocks.all)
    for step in steps:
        index = step.block.index
        match step:
            case Opened():
                assert open_index is None and grown[index] == ""
                open_index = index
            case Grown():
                assert open_index == index and step.text
                grown[index] += step.text
            case Closed():
                assert open_index == index
                open_index = None
    assert open_index is None
    assert grown == [block.text for block in blocks.all]
    assert [block.index for block in blocks.all] == list(range(len(blocks.all)))
    return [(block.kind, block.text) for block in blocks.all], steps


def test_reasoning_then_text() -> None:
    found, _ = run(
        ReasoningDelta("\n"), ReasoningDelta("Hm, "), ReasoningDelta("so \n"), TextDelta(" yes"), TextDelta("\n")
    )
    assert found == [("reasoning", "Hm, so"), ("text", " yes\n")]


def test_calls_with_blanks_between() -> None:
    found, _ = run(
        TextDelta("I look."),
        TextDelta("\n"),
        ToolCallStart(0, "call_1", "a"),
        ToolCallDelta(0, '{"x":'),
        ToolCallDelta(0, "1}"),
        TextDelta("\n"),
        ToolCallStart(1, "call_2", "b"),
        TextDelta("\n"),
    )
    assert found == [("text", "I look.\n"), ("call", '{"x":1}'), ("call", "")]


def test_a_reply_of_blanks_is_text() -> None:
    assert run(TextDelta("\n"), TextDelta(" "))[0] == [("text", "\n ")]
    assert run(ReasoningDelta("\n"))[0] == []
    assert run(TextDelta("\n"), ToolCallStart(0, "call_1", "a"))[0] == [("call", "")]
    assert run()[0] == []


def test_only_the_last_block_is_cut() -> None:
    _, steps = run(TextDelta("a"), ToolCallStart(0, "call_1", "f"), ToolCallDelta(0, "{"), cut=True)
    assert [step.cut for step in steps if isinstance(step, Closed)] == [False, True]


@given(
    st.lists(
        st.builds(
            lambda thinks, text: ReasoningDelta(text) if thinks else TextDelta(text),
            st.booleans(),
            st.text("a \n", max_size=4),
        )
    )
)
def test_nothing_visible_is_lost(pieces: list[Piece]) -> None:
    found, _ = run(*pieces)
    for kind, piece_kind in (("reasoning", ReasoningDelta), ("text", TextDelta)):
        wanted = "".join(piece.text for piece in pieces if isinstance(piece, piece_kind))
        shown = "".join(text for block, text in found if block == kind)
        assert "".join(shown.split()) == "".join(wanted.split())
    for kind, text in found:
        assert text
        assert kind == "text" or text == text.strip()
