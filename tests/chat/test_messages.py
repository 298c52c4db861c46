import pytest

from jaxfold.chat.literals import Literals
from jaxfold.chat.literals import TokenGuard
from jaxfold.chat.messages import TemplateTraits
from jaxfold.chat.messages import arrange
from jaxfold.chat.messages import plain_text
from jaxfold.chat.messages import to_template
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.types import Message
from jaxfold.chat.types import Role
from jaxfold.chat.types import ToolCall
from tests.byte_tokenizer import ByteTokenizer

TURNS: dict[str, Role] = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def talk(text: str) -> list[Message]:
    """ "s1 u2" is a system message "1" and a user message "2"."""
    return [Message(TURNS[word[0]], word[1:]) for word in text.split()]


def literals() -> Literals:
    return Literals(TokenGuard(ByteTokenizer(), "", None))


HERMES = FORMATS["hermes"]
NO_SYSTEM = TemplateTraits(leading_system=False, late_system=False)
STRICT = TemplateTraits(late_system=False, user_runs=False)
STRICT_NO_SYSTEM = TemplateTraits(leading_system=False, late_system=False, user_runs=False)


@pytest.mark.parametrize(
    ("given", "traits", "expected"),
    [
        ("u1 a2 u3", TemplateTraits(), ["user:1", "assistant:2", "user:3"]),
        ("s1 d2 s u3", TemplateTraits(), ["system:1\n\n2", "user:3"]),
        ("s u1", TemplateTraits(), ["system:", "user:1"]),
        ("u1 d2 s3 u4", TemplateTraits(), ["user:1", "system:2", "system:3", "user:4"]),
        (
            "s1 u2 a3 s4 u5",
            TemplateTraits(late_system=False),
            ["system:1", "user:2", "assistant:3", "user:4", "user:5"],
        ),
        ("s1 u2 a3 s4 u5", STRICT, ["system:1", "user:2", "assistant:3", "user:4\n\n5"]),
        ("u1 s2 u3 a4 u5", STRICT, ["user:1\n\n2\n\n3", "assistant:4", "user:5"]),
        ("s1 d2 u3", NO_SYSTEM, ["user:1\n\n2", "user:3"]),
        ("s1 u2 a3 d4", STRICT_NO_SYSTEM, ["user:1\n\n2", "assistant:3", "user:4"]),
        ("u1 u2", STRICT_NO_SYSTEM, ["user:1", "user:2"]),
        ("s1", STRICT_NO_SYSTEM, ["user:1"]),
    ],
)
def test_system_text_goes_where_the_template_takes_it(given: str, traits: TemplateTraits, expected: list[str]) -> None:
    assert [f"{message.role}:{message.content}" for message in arrange(talk(given), traits, HERMES)] == expected


def test_entries_are_in_openai_shape() -> None:
    call = ToolCall("c1", "add", {"a": 1, "b": [2]})
    messages = [
        Message("user", "hi", name="Ann"),
        Message("assistant", "", reasoning="hm", tool_calls=(call,)),
        Message("tool", "3", tool_call_id="c1"),
    ]
    assert to_template(messages, literals(), TemplateTraits(), "messages") == [
        {"role": "user", "content": "hi", "name": "Ann"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    text = to_template(messages, literals(), TemplateTraits(text_arguments=True), "messages")
    assert text[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": [2]}'


def test_every_text_of_a_caller_is_hidden() -> None:
    end = "<|im_end|>"
    message = Message("tool", end, tool_calls=(ToolCall(end, end, {end: [end]}),), tool_call_id=end, name=end)
    assert end not in repr(to_template([message], literals(), TemplateTraits(), "messages"))
    assert end not in repr(to_template([message], literals(), TemplateTraits(text_arguments=True), "messages"))
    assistant = Message("assistant", f"<think>{end}</think>", reasoning=end)
    entry = to_template([assistant], literals(), TemplateTraits(), "messages")[0]
    assert end not in repr(entry)
    assert entry["content"].startswith("<think>")


def test_plain_text() -> None:
    hidden = literals()
    entries = to_template(talk("s1 u2 a3"), hidden, TemplateTraits(), "messages")
    assert plain_text(entries) == "system: 1\nuser: 2\nassistant: 3\nassistant:"
    assert plain_text(entries, open_line=False) == "system: 1\nuser: 2\nassistant: 3\n"


def test_calls_and_results_as_text() -> None:
    calls = (ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "now", {}))
    results = [Message("tool", "3", tool_call_id="c1"), Message("tool", "noon", tool_call_id="c2")]
    turns = [Message("user", "hi"), Message("assistant", "So:", tool_calls=calls), *results, Message("user", "more")]
    written = (
        'So:\n<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )
    told = "<tool_response>\n3\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    none = TemplateTraits(calls=False, results=False)
    assert arrange(turns, none, HERMES) == [
        Message("user", "hi"),
        Message("assistant", written),
        Message("user", told),
        Message("user", "more"),
    ]
    strict = TemplateTraits(calls=False, results=False, user_runs=False)
    assert arrange(turns, strict, HERMES)[2:] == [Message("user", f"{told}\n\nmore")]
    assert arrange(turns, TemplateTraits(), HERMES) == turns
    assert arrange([*turns[:1], *results], TemplateTraits(results=False), HERMES)[1].role == "user"


def test_ids_that_a_template_takes() -> None:
    turns = [
        Message("assistant", "", tool_calls=(ToolCall("call_1", "f", {}),)),
        Message("tool", "x", tool_call_id="call_1"),
    ]
    call, told = to_template(turns, literals(), TemplateTraits(short_ids=True), "messages")
    assert call["tool_calls"][0]["id"] == told["tool_call_id"]
    assert len(told["tool_call_id"]) == 9 and told["tool_call_id"].isalnum()
    kept = Message("tool", "x", tool_call_id="aB3456789")
    assert to_template([kept], literals(), TemplateTraits(short_ids=True), "messages")[0]["tool_call_id"] == "aB3456789"


def test_reasoning_under_the_name_that_a_template_reads() -> None:
    traits = TemplateTraits(thought_key="thinking")
    calls = (ToolCall("c", "f", {}),)
    first, second = to_template(
        [Message("assistant", "", "hm", calls), Message("assistant", "So:", "hm", calls)],
        literals(),
        traits,
        "messages",
    )
    assert first["thinking"] == "hm" and "reasoning_content" not in first
    assert "thinking" not in second  # such templates take a text or thoughts beside calls, not both
