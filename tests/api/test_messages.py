"""Messages and tools: every shape that clients really send is taken, everything else is refused with its path."""

from typing import Any

import pytest

from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.openai.messages import MAX_PARTS
from jaxfold.api.openai.messages import MAX_TOOLS
from jaxfold.api.openai.messages import is_title_request
from jaxfold.api.openai.messages import read_messages
from jaxfold.api.openai.messages import read_tools
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import ToolCall

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def read_one(**fields: Any) -> Message:
    return read_messages({"messages": [{"role": "user", **fields}]})[0]


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content(role: str, content: Any, text: str) -> None:
    assert read_one(role=role, content=content).content == text


def test_missing_content_is_empty_text() -> None:
    assert read_messages({"messages": [{"role": "assistant"}]}) == (Message("assistant", ""),)


def test_names_ids_and_reasoning() -> None:
    assert read_one(role="tool", content="4", tool_call_id="call_1", name="add") == Message(
        "tool", "4", tool_call_id="call_1", name="add"
    )
    for field in ("reasoning_content", "reasoning", "thinking"):
        assert read_one(role="assistant", content="4", **{field: "two and two"}).reasoning == "two and two"
    assert read_one(role="assistant", content=None, refusal="no").content == "no"
    assert read_one(role="assistant", content="yes", refusal=None, audio=None, annotations=[]).content == "yes"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ('{"path": "/a", "text": "he said ', {"_raw": '{"path": "/a", "text": "he said '}),
        ("[1]", {"_raw": "[1]"}),
        ("null", {"_raw": "null"}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ('{"a": "\\ud83d"}', {"_raw": '{"a": "\\ud83d"}'}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
        ([1], {"_raw": "[1]"}),
        (1, {"_raw": "1"}),
        (True, {"_raw": "true"}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_calls_in_the_history(arguments: Any, expected: dict[str, Any]) -> None:
    message = read_one(role="assistant", content=None, tool_calls=[call(arguments)])
    assert message.tool_calls == (ToolCall("call_1", "f", expected),)


def test_call_without_an_id() -> None:
    message = read_one(role="assistant", tool_calls=[{"function": {"name": "f"}}])
    assert message.tool_calls == (ToolCall("", "f", {}),)


def test_calls_as_they_were_before_there_were_tools() -> None:
    message = read_one(role="assistant", content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert message.tool_calls == (ToolCall("", "f", {"a": 1}),)
    assert read_one(role="function", name="f", content="4") == Message("tool", "4", name="f")
    both = read_one(role="assistant", tool_calls=[call("{}")], function_call={"name": "g"})
    assert [one.name for one in both.tool_calls] == ["f"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": None, "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": 1}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": []}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {}}]}],
            "messages[0].content[1].type",
        ),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "content": "x", "prefix": True}], "messages[0].prefix"),
        ([{"role": "assistant", "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "assistant", "reasoning_content": 1}], "messages[0].reasoning_content"),
        ([{"role": "assistant", "refusal": []}], "messages[0].refusal"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": "f"}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "function_call": "f"}], "messages[0].function_call"),
        ([{"role": "assistant", "function_call": {"arguments": "{}"}}], "messages[0].function_call.function.name"),
        ([{"role": "assistant", "tool_calls": [call("{}", id=1)]}], "messages[0].tool_calls[0].id"),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_what_is_wrong_is_named_by_its_path(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages({"messages": messages})
    assert caught.value.param == param
    assert "\n" not in caught.value.message


SCHEMAS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "t1", "parameters": {"type": ["object", "null"], "$defs": {"P": True}}}},
    {"type": "function", "function": {"name": "t2", "parameters": {}}},
    {"type": "function", "function": {"name": "t3"}},
    {"type": "function", "function": {"name": "t4", "description": None, "parameters": None, "strict": True}},
    {"name": "bare", "parameters": {"type": "object"}},
]


@pytest.mark.parametrize("choice", [None, "auto", "AUTO", {"type": "auto"}, {"mode": "auto"}])
def test_tools_to_offer(choice: Any) -> None:
    assert read_tools({"tools": SCHEMAS, "tool_choice": choice}) == tuple(SCHEMAS)


def test_allowed_tools_leave_out_the_others() -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "t3"}}, {"name": "bare"}]}
    for choice in ({"type": "allowed_tools", "allowed_tools": allowed}, {"type": "allowed_tools", **allowed}):
        assert read_tools({"tools": SCHEMAS, "tool_choice": choice}) == (SCHEMAS[2], SCHEMAS[4])


@pytest.mark.parametrize("choice", ["none", "None", {"type": "none"}, {"mode": "none"}])
@pytest.mark.parametrize("tools", [None, [], [WEATHER]])
def test_choice_none_hides_tools(choice: Any, tools: Any) -> None:
    assert read_tools({"tools": tools, "tool_choice": choice}) == ()


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ({}, None, "tools"),
        ("x", None, "tools"),
        (["x"], None, "tools[0]"),
        ([WEATHER, {}], None, "tools[1].name"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function", "function": "f"}], None, "tools[0].function"),
        ([{"type": "function", "function": {}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": 1}}], None, "tools[0].function.name"),
        ([{"function": {"name": "f", "description": 1}}], None, "tools[0].function.description"),
        ([{"function": {"name": "f", "parameters": []}}], None, "tools[0].function.parameters"),
        ([], "required", "tool_choice"),
        ([WEATHER], {"type": "function", "function": {"name": "other"}}, "tool_choice"),
        ([WEATHER], {"type": "function"}, "tool_choice"),
        ([WEATHER], {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tool_choice"),
        ([WEATHER], {"type": "allowed_tools", "tools": [{"name": "other"}]}, "tool_choice"),
        ([WEATHER], "sometimes", "tool_choice"),
        ([WEATHER], 1, "tool_choice"),
        ([WEATHER], [], "tool_choice"),
        ([WEATHER], {}, "tool_choice"),
    ],
    ids=lambda value: str(value)[-50:],
)
def test_tools_that_are_refused(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_tools({"tools": tools, "tool_choice": choice})
    assert caught.value.param == param


TITLE = {"role": "system", "content": "Write a short Title for this session."}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [{}] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [{"role": "user", "content": [{}] * (MAX_PARTS + 1)}]}, "messages[0].content"),
        ({"messages": [USER], "tools": [WEATHER] * (MAX_TOOLS + 1)}, "tools"),
        ({"messages": [USER], "tools": [None] * (MAX_TOOLS + 1)}, "tools"),
    ],
    ids=["messages", "junk messages", "parts", "tools", "junk tools"],
)
def test_long_lists_are_refused_by_their_length(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match="at most") as refusal:
        read_messages(body)
        read_tools(body)
    assert refusal.value.param == param


def test_title_requests_are_recognised() -> None:
    assert is_title_request({"messages": [TITLE, USER]})
    assert is_title_request({"messages": [TITLE, USER], "tools": []})


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [TITLE, USER], "tools": [WEATHER]},
        {"messages": [USER, TITLE]},
        {"messages": [{"role": "system", "content": "Be brief."}, USER]},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "title"}]}, USER]},
        {"messages": [TITLE, {"role": "user", "content": "x" * 4096}]},
        {"messages": [TITLE, {"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": []},
        {"messages": ["title"]},
        {},
    ],
    ids=lambda value: str(value)[:60],
)
def test_other_requests_are_not(body: dict[str, Any]) -> None:
    assert not is_title_request(body)
