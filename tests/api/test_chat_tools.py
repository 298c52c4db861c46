"""Tool calls over a real socket: offered tools, whole and streamed calls, histories, templates without tools."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.chat.template import ChatTemplate
from tests.api.harness import CHAT
from tests.api.harness import CHATML
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.sse import events
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOKYO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tokyo"}}\n</tool_call>'
BROKEN = '<tool_call>{"name": "get_weather", "arguments": {"city": }</tool_call>'


@pytest.fixture(scope="module")
def tool_server() -> Iterator[Server]:
    with running(ScriptedEngine(), template=THINKING) as server:
        yield server


def replies(server: Server, text: str, **fields: Any) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
    """Message and finish reason of the whole reply, and the streamed one's chunks; both must say the same."""
    server.engine.script = reply_ids(text)
    body = chat_body("Weather?", **{"tools": [WEATHER, NOW], **fields})
    whole = server.post(CHAT, body).json
    chunks = events(server, CHAT, body)
    (choice,) = whole["choices"]
    message, reason = joined(chunks)
    told = {**choice["message"], "tool_calls": without_ids(choice["message"].get("tool_calls", []))}
    assert message == told
    assert reason == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["jaxfold"]["token_sha"] == whole["jaxfold"]["token_sha"]
    return choice["message"], reason, chunks


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for call in calls:
        assert call["id"].startswith("call_") and len(call["id"]) == 29 and call["type"] == "function"
    assert len({call["id"] for call in calls}) == len(calls)
    return [call["function"] for call in calls]


def joined(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """A stream's message and finish reason, after a check of every delta of a call."""
    texts: dict[str, str] = {}
    calls: list[dict[str, Any]] = []
    functions: list[dict[str, str]] = []
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        for name in ("content", "reasoning_content"):
            if name in delta:
                texts[name] = texts.get(name, "") + delta[name]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert set(call) == {"index", "id", "type", "function"}
                assert call["index"] == len(calls)
                assert set(call["function"]) == {"name", "arguments"} and call["function"]["arguments"] == ""
                calls.append(call)
                functions.append(dict(call["function"]))
            else:
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                assert call["index"] == len(calls) - 1
                assert isinstance(call["function"]["arguments"], str) and call["function"]["arguments"]
                functions[-1]["arguments"] += call["function"]["arguments"]
    without_ids(calls)
    message = {"role": "assistant", "content": texts.pop("content", None if calls else ""), **texts}
    return message | {"tool_calls": functions}, chunks[-1]["choices"][0]["finish_reason"]


def arguments(message: dict[str, Any]) -> list[Any]:
    return [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]]


def prompt(server: Server) -> str:
    return bytes(id_ for id_ in server.last_request().prompt_ids if id_ < 256).decode()


def test_a_call(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, PARIS)
    assert set(message) == {"role", "content", "tool_calls"} and message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert reason == "tool_calls"


def test_text_reasoning_and_two_calls(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, f"<think>\nBoth.\n</think>\n\nLet me see.\n{PARIS}\n{TOKYO}")
    assert (message["reasoning_content"], message["content"], reason) == ("Both.", "Let me see.", "tool_calls")
    assert arguments(message) == [{"city": "Paris"}, {"city": "Tokyo"}]


def test_a_call_inside_an_unclosed_think_block(tool_server: Server) -> None:
    message, reason, chunks = replies(tool_server, f"<think>\nI need it.\n{PARIS}")
    assert (message["reasoning_content"], message["content"], reason) == ("I need it.", None, "tool_calls")
    assert arguments(message) == [{"city": "Paris"}]
    assert not any("<tool" in str(chunk["choices"][0]["delta"].get("reasoning_content")) for chunk in chunks)
    message, reason, _ = replies(tool_server, f"<think>\nMaybe {PARIS}? No.\n</think>\n\nSunny.")
    assert "tool_calls" not in message
    assert (message["reasoning_content"], message["content"], reason) == (f"Maybe {PARIS}? No.", "Sunny.", "stop")


@pytest.mark.parametrize(
    "text",
    [
        BROKEN,
        PARIS.replace("get_weather", "get_time"),
        PARIS[:-20],
        '{"city": "Paris"}',
        "Sunny.",
        f"{BROKEN}\n{BROKEN}",
    ],
)
def test_what_is_no_call_is_content(tool_server: Server, text: str) -> None:
    message, reason, _ = replies(tool_server, text)
    assert message == {"role": "assistant", "content": text}
    assert reason == "stop"


def test_a_bare_call_is_one(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, '```json\n{"name": "now", "arguments": {}}\n```')
    assert (arguments(message), reason) == ([{}], "tool_calls")


def test_long_arguments_arrive_as_they_are_written(tool_server: Server) -> None:
    text = PARIS.replace("Paris", "Paris " * 400)
    message, _, chunks = replies(tool_server, text)
    assert arguments(message) == [{"city": "Paris " * 400}]
    assert sum("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks) > 5


def test_a_reply_cut_off_inside_a_call(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, PARIS, max_tokens=40)
    assert (message["content"], reason) == (PARIS[: len("<tool_call>") + 39], "length")
    long = PARIS.replace("Paris", "Paris " * 400)
    message, reason, _ = replies(tool_server, long, max_tokens=700)
    assert reason == "length"
    with pytest.raises(json.JSONDecodeError):
        arguments(message)


def test_a_stop_string_inside_a_call(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, PARIS, stop="arguments")
    assert (message["content"], reason) == ('<tool_call>\n{"name": "get_weather", "', "stop")
    assert replies(tool_server, PARIS, stop="</tool_call>")[1] == "tool_calls"


def test_at_most_one_call(tool_server: Server) -> None:
    message, reason, _ = replies(tool_server, f"Sure. {BROKEN} {PARIS} {TOKYO}", parallel_tool_calls=False)
    assert (message["content"], arguments(message), reason) == (f"Sure. {BROKEN}", [{"city": "Paris"}], "tool_calls")
    for value in (True, None):
        assert len(replies(tool_server, PARIS + TOKYO, parallel_tool_calls=value)[0]["tool_calls"]) == 2
    answer = tool_server.post(CHAT, chat_body(tools=[WEATHER], parallel_tool_calls="no"))
    assert (answer.status, answer.error["param"]) == (400, "parallel_tool_calls")


@pytest.mark.parametrize(
    "fields", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"tools": None, "tool_choice": "none"}]
)
def test_calls_are_only_looked_for_among_offered_tools(tool_server: Server, fields: dict[str, Any]) -> None:
    message, reason, _ = replies(tool_server, PARIS, **fields)
    assert (message, reason) == ({"role": "assistant", "content": PARIS}, "stop")
    assert "get_weather" not in prompt(tool_server)


def test_allowed_tools(tool_server: Server) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    message, _, _ = replies(tool_server, PARIS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert message["content"] == PARIS
    assert "get_weather" not in prompt(tool_server)


@pytest.mark.parametrize("said", ["Nothing to call.", PARIS, PARIS.replace("get_weather", "now")])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_choice_is_a_call_whatever_the_model_says(tool_server: Server, said: str, choice: Any) -> None:
    message, reason, _ = replies(tool_server, said, tool_choice=choice)
    assert reason == "tool_calls" and message["content"] is None
    name = message["tool_calls"][0]["function"]["name"]
    assert name in ("get_weather", "now") if choice == "required" else name == "get_weather"
    assert all(isinstance(one, dict) for one in arguments(message))


def test_a_named_tool_is_called_once(tool_server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    message, _, _ = replies(tool_server, f"{PARIS} and {PARIS}", tool_choice=named)
    assert len(message["tool_calls"]) == 1


def test_what_a_forced_call_does_not_enforce_is_in_the_stats(tool_server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}
    odd = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = chat_body(tools=[odd], tool_choice="required")
    assert "tools[0]: properties.a.not" in tool_server.post(CHAT, body).json["jaxfold"]["warnings"][-1]
    odd["function"]["strict"] = True  # type: ignore[index]
    assert tool_server.post(CHAT, body).error["param"] == "tools[0]"
    odd["function"]["parameters"] = {"type": "object", "properties": {"a": {"type": "banana", "pattern": "["}}}  # type: ignore[index]
    answer = tool_server.post(CHAT, body)
    assert (answer.status, answer.error["param"]) == (400, "tools[0]")


def test_schemas_of_any_shape_are_taken(tool_server: Server) -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "$defs": {"P": {"type": "object", "properties": {"k": {"type": ["string", "null"]}}}},
        "properties": {
            "p": {"$ref": "#/$defs/P"},
            "n": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}, {"type": "null"}]},
            "any": True,
            "odd": {"type": "banana", "pattern": "["},
        },
    }
    odd = [
        {"type": "function", "function": {"name": "t1", "parameters": parameters}},
        {"name": "t2", "parameters": {}},
        NOW,
    ]
    text = "<tool_call><function=t1><parameter=p>{}</parameter><parameter=odd>1</parameter></function></tool_call>"
    message, _, _ = replies(tool_server, text, tools=odd)
    assert arguments(message) == [{"p": "{}", "odd": "1"}]
    assert "banana" in prompt(tool_server)


def test_parameters_of_xml_calls_are_typed(tool_server: Server) -> None:
    values = "<parameter=city>\n7\n</parameter>\n<parameter=days>\n7\n</parameter>\n"
    text = f"<tool_call>\n<function=get_weather>\n{values}</function>\n</tool_call>"
    message, _, _ = replies(tool_server, text)
    assert arguments(message) == [{"city": "7", "days": 7}]


HISTORY = [
    {"role": "user", "content": "Secret number? Use a tool."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_secret", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]


@pytest.mark.parametrize("template", [CHATML, PLAIN, None])
@pytest.mark.parametrize("tools", [None, [NOW]])
def test_calls_in_the_history_reach_every_model(template: str | None, tools: Any) -> None:
    with running(ScriptedEngine(reply_ids("ok")), template=template) as server:
        broken = [{"function": {"name": "write_file", "arguments": '{"text": "he said '}}]
        messages = [*HISTORY, {"role": "assistant", "tool_calls": broken}, {"role": "user", "content": "Go on"}]
        assert server.post(CHAT, {"messages": messages, "tools": tools}).status == 200
        text = prompt(server)
        assert all(part in text for part in ("get_secret", "42", "write_file", "he said", "Go on"))
        assert "None" not in text


def test_a_model_without_tools_in_its_template_can_call_them() -> None:
    with running(ScriptedEngine(), template=PLAIN) as server:
        message, reason, chunks = replies(server, PARIS)
        assert (arguments(message), reason) == ([{"city": "Paris"}], "tool_calls")
        assert "explains them" in chunks[-1]["jaxfold"]["warnings"][0]
        assert "You can use tools" in prompt(server) and '"name":"get_weather"' in prompt(server)


def test_markers_that_are_control_tokens() -> None:
    tokenizer = ByteTokenizer(
        added=("<think>", "</think>"), control=("<s>", "<|im_end|>", "<|im_start|>", "[TOOL_CALLS]")
    )
    template = CHATML + "{# [TOOL_CALLS] #}"
    call = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'
    script = [*tokenizer.encode(call, parse_special=True), tokenizer.special_tokens["<|im_end|>"]]
    with running(ScriptedEngine(script), template=template, tokenizer=tokenizer) as server:
        body = server.post(CHAT, chat_body(tools=[NOW])).json
        assert body["choices"][0]["finish_reason"] == "tool_calls"
        assert server.post(CHAT, chat_body()).json["choices"][0]["message"]["content"] == call[len("[TOOL_CALLS]") :]
        assert ChatTemplate(template, tokenizer, tool_format="hermes").tool_format.name == "hermes"


@pytest.mark.parametrize(
    ("default", "fields", "thinks", "level"),
    [
        ("none", {}, False, ""),
        ("none", {"reasoning_effort": "low"}, True, "low"),
        ("none", {"think": True}, True, ""),
        ("high", {}, True, "max"),
        ("high", {"think": False}, False, ""),
        ("high", {"reasoning_effort": "minimal"}, True, "low"),
        (None, {}, True, ""),
    ],
)
def test_the_servers_own_effort(default: str | None, fields: dict[str, Any], thinks: bool, level: str) -> None:
    template = (
        THINKING + "{% if reasoning_effort == 'low' or reasoning_effort == 'max' %}{{ reasoning_effort }}{% endif %}"
    )
    with running(ScriptedEngine(reply_ids("ok")), template=template, reasoning_effort=default) as server:
        assert server.post(CHAT, chat_body(**fields)).status == 200
        assert (ByteTokenizer().special_tokens["</think>"] not in server.last_request().prompt_ids) is thinks
        assert prompt(server).endswith(level)


def test_the_servers_own_effort_is_nothing_to_a_model_that_does_not_reason() -> None:
    with running(ScriptedEngine(reply_ids("ok")), tokenizer=ByteTokenizer(added=()), reasoning_effort="high") as server:
        assert server.post(CHAT, chat_body()).status == 200
