"""Structured output and forced calls under every protocol's names: the same tokens as the chat that asks for the same.

A protocol here is one entry that says how it asks and how it answers; each test runs for all of them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from jaxfold.chat.service import ChatSettings
from tests.api.harness import CHAT
from tests.api.harness import CHATML
from tests.api.harness import END_ID
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 3}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
MATCH = r'\{\s*"name"\s*:\s*"[^"]{0,5}"\s*,\s*"age"\s*:\s*\d+\s*\}'
UNENFORCED = {"type": "object", "properties": {"a": {"not": {}}}}
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
NAMES = ("weather", "now")
NAMED = {"type": "function", "function": {"name": "weather"}}


@dataclass(frozen=True)
class Protocol:
    """How a route asks for a schema, for JSON and for a call; `param` names a refused schema."""

    path: str
    limit: str
    param: str

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hi"}]
        match self.path:
            case "/v1/responses":
                return {"input": "hi", self.limit: 400, **fields}
            case "/api/generate":
                return {"model": MODEL, "prompt": "hi", "stream": False, "options": {self.limit: 400}, **fields}
            case "/api/chat":
                return {"model": MODEL, "messages": messages, "stream": False, "options": {self.limit: 400}, **fields}
        return {"messages": messages, self.limit: 400, **fields}

    def schema(self, schema: Any) -> dict[str, Any]:
        match self.path:
            case "/v1/messages":
                return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
            case "/v1/responses":
                return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}}
            case "/api/chat" | "/api/generate":
                return {"format": schema}
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}

    def tools(self) -> list[dict[str, Any]]:
        match self.path:
            case "/v1/messages":
                return [{"name": name, "input_schema": ARGUMENTS} for name in NAMES]
            case "/v1/responses":
                return [{"type": "function", "name": name, "parameters": ARGUMENTS} for name in NAMES]
        return [{"type": "function", "function": {"name": name, "parameters": ARGUMENTS}} for name in NAMES]

    def choice(self, named: bool) -> Any:
        match self.path:
            case "/v1/messages":
                return {"type": "tool", "name": "weather"} if named else {"type": "any"}
            case "/v1/responses" if named:
                return {"type": "function", "name": "weather"}
        return NAMED if named else "required"

    def text(self, answer: Any) -> str:
        match self.path:
            case "/v1/messages":
                return "".join(block["text"] for block in answer["content"] if block["type"] == "text")
            case "/v1/responses":
                items = (item for item in answer["output"] if item["type"] == "message")
                return "".join(part["text"] for item in items for part in item["content"])
            case "/api/generate":
                return str(answer["response"])
            case "/api/chat":
                return str(answer["message"]["content"])
        return str(answer["choices"][0]["message"]["content"])

    def calls(self, answer: Any) -> list[tuple[str, Any]]:
        match self.path:
            case "/v1/messages":
                return [(one["name"], one["input"]) for one in answer["content"] if one["type"] == "tool_use"]
            case "/v1/responses":
                items = (item for item in answer["output"] if item["type"] == "function_call")
                return [(item["name"], json.loads(item["arguments"])) for item in items]
            case "/api/chat":
                functions = [call["function"] for call in answer["message"]["tool_calls"]]
                return [(one["name"], one["arguments"]) for one in functions]
        functions = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
        return [(one["name"], json.loads(one["arguments"])) for one in functions]

    def ended(self, answer: Any) -> str:
        """Why the reply ended, in the protocol's word."""
        match self.path:
            case "/v1/messages":
                return str(answer["stop_reason"])
            case "/v1/responses":
                return str(answer["status"])
            case "/api/chat":
                return str(answer["done_reason"])
        return str(answer["choices"][0]["finish_reason"])

    def error(self, answer: Any) -> str:
        return str(answer["error"] if self.path.startswith("/api") else answer["error"]["message"])


PROTOCOLS = (
    Protocol(CHAT, "max_tokens", "response_format"),
    Protocol("/v1/messages", "max_tokens", "output_config.format"),
    Protocol("/v1/responses", "max_output_tokens", "text.format"),
    Protocol("/api/chat", "num_predict", "format"),
    Protocol("/api/generate", "num_predict", "format"),
)
CALLING = PROTOCOLS[:4]
JSON_OBJECT: tuple[tuple[Protocol, dict[str, Any]], ...] = (
    (PROTOCOLS[0], {"response_format": {"type": "json_object"}}),
    (PROTOCOLS[2], {"text": {"format": {"type": "json_object"}}}),
    (PROTOCOLS[3], {"format": "json"}),
    (PROTOCOLS[4], {"format": "json"}),
    (PROTOCOLS[4], {"format": "json", "raw": True}),
)
NOTHING: tuple[tuple[Protocol, dict[str, Any]], ...] = (
    (PROTOCOLS[0], {"response_format": {"type": "text"}}),
    (PROTOCOLS[1], {"output_config": {"format": None}}),
    (PROTOCOLS[2], {"text": {"format": {"type": "text"}}}),
    (PROTOCOLS[2], {"text": {"format": None}}),
    (PROTOCOLS[3], {"format": ""}),
    (PROTOCOLS[4], {"format": None}),
)
# Two fields that say what the reply must match, and the one that is named. None goes before the other.
TWO: tuple[tuple[Protocol, dict[str, Any], str], ...] = (
    (PROTOCOLS[0], {"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    (
        PROTOCOLS[1],
        {"output_format": {"type": "json_schema", "schema": {}}, **PROTOCOLS[1].schema(dict(SCHEMA))},
        "output_format",
    ),
    (PROTOCOLS[1], {"response_format": {"type": "json_object"}}, "response_format"),
    (PROTOCOLS[2], {"response_format": {"type": "json_object"}}, "response_format"),
    (PROTOCOLS[2], {"guided_json": {}, **PROTOCOLS[2].schema(dict(SCHEMA))}, "guided_json"),
    (PROTOCOLS[3], {"response_format": {"type": "json_object"}, "format": "json"}, "response_format"),
    (PROTOCOLS[4], {"guided_regex": "a", "format": "json"}, "guided_regex"),
)


def each(protocol: object) -> str:
    return protocol.path if isinstance(protocol, Protocol) else str(protocol)[:50]


def ask(server: Server, protocol: Protocol, **fields: Any) -> Any:
    answer = server.post(protocol.path, protocol.body(**fields))
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=each)
@pytest.mark.parametrize("said", ["nothing of the kind", '{"name": "Bob", "age": 12}'])
def test_a_schema_is_kept_whatever_the_model_says(server: Server, protocol: Protocol, said: str) -> None:
    server.engine.script = [*said.encode(), *([ord('"')] * 50), *([END_ID] * 100)]
    text = protocol.text(ask(server, protocol, **protocol.schema(dict(SCHEMA))))
    assert re.fullmatch(MATCH, text), text
    chat = PROTOCOLS[0]
    assert text == chat.text(ask(server, chat, **chat.schema(dict(SCHEMA))))


@pytest.mark.parametrize(("protocol", "fields"), JSON_OBJECT, ids=each)
def test_any_object(server: Server, protocol: Protocol, fields: dict[str, Any]) -> None:
    server.engine.script = [*b"[1, 2]", *([END_ID] * 100)]
    assert isinstance(json.loads(protocol.text(ask(server, protocol, **fields))), dict)


@pytest.mark.parametrize(("protocol", "fields"), NOTHING, ids=each)
def test_formats_that_ask_for_nothing(server: Server, protocol: Protocol, fields: dict[str, Any]) -> None:
    ask(server, protocol, **fields)
    assert server.last_request().guide is None


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=each)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_is_not_enforced_is_refused_by_the_fields_own_name(
    server: Server, protocol: Protocol, stream: bool
) -> None:
    answer = server.post(protocol.path, protocol.body(**protocol.schema(UNENFORCED)) | {"stream": stream})
    assert answer.status == 400
    message = protocol.error(answer.json)
    assert message.startswith(protocol.param) and "properties.a.not is not enforced" in message
    assert protocol.param == "response_format" or "response_format" not in message
    assert not server.engine.requests


@pytest.mark.parametrize(("protocol", "fields", "named"), TWO, ids=each)
def test_two_fields_that_say_what_a_reply_must_match(
    server: Server, protocol: Protocol, fields: dict[str, Any], named: str
) -> None:
    answer = server.post(protocol.path, protocol.body(**fields))
    assert answer.status == 400
    assert protocol.error(answer.json).startswith(named)
    assert not server.engine.requests


@pytest.mark.parametrize("protocol", CALLING, ids=each)
@pytest.mark.parametrize("named", [False, True])
def test_a_forced_call_whatever_the_model_says(server: Server, protocol: Protocol, named: bool) -> None:
    server.engine.script = [*b"No, I would rather talk.", *([ord('"')] * 50), *([END_ID] * 200)]
    answer = ask(server, protocol, tools=protocol.tools(), tool_choice=protocol.choice(named))
    calls = protocol.calls(answer)
    assert len(calls) == 1 if named else calls
    assert {name for name, _ in calls} <= ({"weather"} if named else set(NAMES))
    assert all(isinstance(one["city"], str) and len(one["city"]) <= 9 for _, one in calls)
    assert protocol.ended(answer) in ("tool_calls", "tool_use", "completed")
    assert not named or protocol.text(answer) in ("", "None")


@pytest.mark.parametrize("protocol", CALLING, ids=each)
def test_a_format_beside_a_forced_call_is_refused(server: Server, protocol: Protocol) -> None:
    fields = protocol.schema(dict(SCHEMA)) | {"tools": protocol.tools(), "tool_choice": protocol.choice(False)}
    answer = server.post(protocol.path, protocol.body(**fields))
    assert answer.status == 400
    assert protocol.error(answer.json).startswith(f"{protocol.param} cannot be combined with tool_choice")


@pytest.mark.parametrize("protocol", CALLING, ids=each)
def test_a_forced_call_needs_tools(server: Server, protocol: Protocol) -> None:
    for named in (False, True):
        answer = server.post(protocol.path, protocol.body(tool_choice=protocol.choice(named)))
        assert answer.status == 400 and "tool_choice" in protocol.error(answer.json)
    assert not server.engine.requests


def test_the_page_can_force_a_call_too(server: Server) -> None:
    server.engine.script = [*b"No.", *([ord('"')] * 50), *([END_ID] * 200)]
    chat = PROTOCOLS[0]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": chat.tools(), "toolChoice": "required"}
    frames = [json.loads(line[6:]) for line in server.post("/api/chat", body).body.decode().splitlines() if line]
    calls = [call for frame in frames for call in frame.get("tool_calls", [])]
    assert calls and calls[0]["name"] in NAMES


def test_reasoning_comes_before_a_format_of_ollama() -> None:
    said = '<think>a"b</think>{"name": "Bob", "age": 12}'
    with running(ScriptedEngine(reply_ids(said)), template=THINKING) as server:
        ollama = PROTOCOLS[3]
        message = ask(server, ollama, think=True, **ollama.schema(dict(SCHEMA)))["message"]
        assert message["thinking"] == 'a"b'
        assert json.loads(message["content"]) == {"name": "Bob", "age": 12}
        assert ask(server, ollama, think=True, thinking_budget=3)["message"]["thinking"] != 'a"b'


THINKS: tuple[tuple[Protocol, dict[str, Any], dict[str, Any]], ...] = (
    (PROTOCOLS[0], {}, {"thinking_budget": 12}),
    (PROTOCOLS[1], {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "enabled", "budget_tokens": 12}}),
    (PROTOCOLS[2], {}, {"thinking_budget": 12}),
    (PROTOCOLS[3], {"think": True}, {"think": True, "thinking_budget": 12}),
    (PROTOCOLS[4], {"think": "high"}, {"think": True, "thinking_budget": 12}),
)


def test_the_servers_budget_of_reasoning_unless_a_request_has_its_own() -> None:
    said = [*reply_ids("<think>" + "x" * 30)[:-1], *b"answer", END_ID]
    with running(ScriptedEngine(said), template=THINKING, chat=ChatSettings(thinking_budget=8)) as server:
        for protocol, asked, own in THINKS:
            for fields, budget in ((asked, 8), (own, 12)):
                ask(server, protocol, **fields)
                guide = server.last_request().guide
                assert guide is not None and guide.thinking is not None and guide.thinking.budget == budget
        server.post(CHAT, PROTOCOLS[0].body(think=False))
        assert server.last_request().guide is None


def test_a_budget_of_the_servers_that_cannot_be_kept_refuses_nobody() -> None:
    """The end of this template's reasoning is no token of its own, so it cannot be forced."""
    plain, chat = ByteTokenizer(added=()), ChatSettings(thinking_budget=4)
    with running(ScriptedEngine(), template=CHATML + "{# </think> #}<think>\n", tokenizer=plain, chat=chat) as server:
        server.engine.script = [*b"Hm.\n</think>\n\nYes.", END_ID]
        assert "thinking_budget needs reasoning to be off" in ask(server, PROTOCOLS[0])["jaxfold"]["warnings"][-1]
        refused = server.post(CHAT, PROTOCOLS[0].body(thinking_budget=4))
        assert (refused.status, refused.error["param"]) == (400, "thinking_budget")
