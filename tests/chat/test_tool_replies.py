"""Replies with calls, from ids to events: together with reasoning, stop strings, control tokens and usage."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.reader import ToolUse
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import WrittenCall
from jaxfold.runtime.api import FinishReason
from tests.byte_tokenizer import ADDED
from tests.byte_tokenizer import CONTROL
from tests.byte_tokenizer import ByteTokenizer
from tests.chat.test_assembly import assemble
from tests.chat.test_assembly import prepared

TOKENIZER = ByteTokenizer()
OFFER = Offer([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}])
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LONG = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 400
OTHER = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'


def replied(
    text: str,
    *stops: str,
    reason: FinishReason = "stop",
    size: int = 3,
    form: str = "hermes",
    parallel: bool = True,
    tokenizer: ByteTokenizer = TOKENIZER,
    **changes: Any,
) -> tuple[str, str, list[tuple[str, str]], Finish]:
    """Reasoning, answer, calls and the end of a reply; the events are checked on the way."""
    request = prepared(*stops, tokenizer=tokenizer, tools=ToolUse(FORMATS[form], OFFER, parallel), **changes)
    ids = tokenizer.encode(text, parse_special=True)
    events, finish = assemble(request, [ids[at : at + size] for at in range(0, len(ids), size)], reason, tokenizer)
    told = [token_id for event in events for token_id in event.token_ids]
    assert told == ids[: len(told)]
    return text_of(events, ReasoningDelta), text_of(events, TextDelta), calls_of(events), finish


def text_of(events: list[ReplyEvent], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def calls_of(events: list[ReplyEvent]) -> list[tuple[str, str]]:
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.id for start in starts}) == len(starts)
    assert all(start.id.startswith("call_") and len(start.id) == 29 for start in starts)
    arguments = [""] * len(starts)
    begun = -1
    for event in events:
        if isinstance(event, ToolCallStart):
            begun += 1
        elif isinstance(event, ToolCallDelta):
            assert event.index == begun and event.arguments
            arguments[event.index] += event.arguments
    return [(start.name, text) for start, text in zip(starts, arguments, strict=True)]


ONE = [("f", '{"a":1}')]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "calls"),
    [
        (CALL, "", "", ONE),
        ("Sure.\n\n" + CALL + "\n", "", "Sure.", ONE),
        (CALL + "\n" + CALL, "", "", ONE * 2),
        ("A " + CALL + "\n\nB", "", "A\n\nB", ONE),
        ("\n" + CALL + "\nB", "", "B", ONE),
        ("Sure. \n", "", "Sure. \n", []),
        (OTHER, "", OTHER, []),
        ("<think>\nhm\n</think>\n\nSure.\n" + CALL, "hm", "Sure.", ONE),
        # A call in a block that never closes is the answer; in one that closes it was only a thought.
        ("<think>\nhm\n" + CALL, "hm", "", ONE),
        ("<think>hm " + CALL + "\n" + CALL, "hm", "", ONE * 2),
        (f"<think>hm {CALL} no.</think>yes", f"hm {CALL} no.", "yes", []),
        (f"<think>hm {CALL}</think>{CALL}", f"hm {CALL}", "", ONE),
        ("<think>hm " + OTHER, f"hm {OTHER}", "", []),
        ("<think>hm " + CALL[:-17], "hm " + CALL[:-17], "", []),
        ("<think>hm " + LONG, "hm " + LONG, "", []),
    ],
)
def test_calls_beside_reasoning_and_text(
    text: str, reasoning: str, answer: str, calls: list[tuple[str, str]], size: int
) -> None:
    got = replied(text, size=size)
    assert got[:3] == (reasoning, answer, calls)
    assert got[3].reason == ("tool_calls" if calls else "stop")


def test_reasoning_goes_on_while_a_call_is_only_mentioned() -> None:
    request = prepared(tools=ToolUse(FORMATS["hermes"], OFFER), in_reasoning=True)
    events, _ = assemble(request, [TOKENIZER.encode(f"one {OTHER} two ", parse_special=True), [*b"three"]])
    first = events[0]
    assert isinstance(first, ReasoningDelta) and first.text == f"one {OTHER} two"


def test_why_a_reply_ended() -> None:
    assert replied(CALL, reason="length")[3].reason == "tool_calls"
    assert replied(LONG, reason="length")[3].reason == "length"
    assert replied(LONG)[3].reason == "tool_calls"
    assert replied(CALL + LONG, reason="length")[3].reason == "length"
    assert replied(CALL[:-16], reason="length")[1:3] == (CALL[:-16], [])
    assert replied(CALL[:-16], reason="length")[3].reason == "length"
    assert replied(CALL, reason="cancelled")[3].reason == "cancelled"


def test_stop_strings_and_calls() -> None:
    _, answer, calls, finish = replied(CALL + " more", "</tool_call>")
    assert (answer, calls, finish.reason, finish.stop_sequence) == ("", ONE, "tool_calls", "</tool_call>")
    _, answer, calls, finish = replied(CALL, '"arg')
    assert (answer, calls, finish.reason) == ('<tool_call>\n{"name": "f", ', [], "stop")


def test_at_most_one_call_if_the_request_says_so() -> None:
    _, answer, calls, finish = replied(f"A {OTHER} {CALL} B {CALL}", parallel=False)
    assert (answer, calls) == (f"A {OTHER} B", ONE)
    assert finish.usage.completion_tokens == len(TOKENIZER.encode(f"A {OTHER} {CALL} B {CALL}", parse_special=True))
    assert replied(LONG, parallel=False)[1:3] == (LONG, [])


def test_markers_that_are_control_tokens() -> None:
    tokenizer = ByteTokenizer(control=(*CONTROL, "<|tool_call>", "<tool_call|>", '<|"|>'), added=ADDED)
    call = '<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>'
    _, answer, calls, _ = replied("Sure. " + call, form="gemma", tokenizer=tokenizer)
    assert (answer, calls) == ("Sure.", [("f", '{"a":1,"b":"x"}')])
    assert replied("<|vision_start|>" + call[:20], form="gemma", tokenizer=tokenizer)[1] == call[:20]
    events, _ = assemble(prepared(tokenizer=tokenizer), [tokenizer.encode(call, parse_special=True)], "stop", tokenizer)
    assert text_of(events, TextDelta) == "call:f{a:1,b:x}"


def test_harmony() -> None:
    control = ("<s>", "<|im_end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")
    tokenizer = ByteTokenizer(control=control, added=(), eos=("<|call|>",))
    thought = "<|channel|>analysis<|message|>hm<|end|>"
    call = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    options: dict[str, Any] = {"form": "harmony", "tokenizer": tokenizer, "think": False, "channels": True}
    reasoning, answer, calls, finish = replied(thought + call, **options)
    assert (reasoning, answer, calls, finish.reason) == ("hm", "", ONE, "tool_calls")
    assert finish.usage.reasoning_tokens == len(tokenizer.encode(thought, parse_special=True))
    answered = thought + "<|start|>assistant<|channel|>final<|message|>yes"
    assert replied(answered, **options)[:3] == ("hm", "yes", [])
    unknown = call.replace("functions.f", "functions.g")
    assert replied(unknown, **options)[1].startswith("<|channel|>commentary to=functions.g<|message|>")


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", CALL, OTHER, LONG, CALL[:20], "x", " ", "\n", "STOP"]), max_size=7
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 40),
)
def test_pieces_do_not_matter(pieces: list[str], in_reasoning: bool, parallel: bool, size: int) -> None:
    text = "".join(pieces)
    options: dict[str, Any] = {"in_reasoning": in_reasoning, "parallel": parallel}
    whole = replied(text, "STOP", size=100_000, **options)
    parts = replied(text, "STOP", size=size, **options)
    assert parts[:3] == whole[:3]
    assert (parts[3].reason, parts[3].usage) == (whole[3].reason, whole[3].usage)


def test_arguments_of_a_whole_call() -> None:
    assert WrittenCall("c", "f", '{"a":1}').decoded == {"a": 1}
    assert WrittenCall("c", "f", '{"a":').decoded == {"_raw": '{"a":'}
    assert WrittenCall("c", "f", "[" * 100_000).decoded == {"_raw": "[" * 100_000}
