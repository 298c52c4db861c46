"""Structured output over HTTP: what is asked for is what comes, or the request is refused before any token."""

import json
import re
from typing import Any

import pytest

from tests.api.harness import CHAT
from tests.api.harness import CHATML
from tests.api.harness import COMPLETIONS
from tests.api.harness import END_ID
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.sse import events
from tests.scripted_engine import ScriptedEngine

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def response_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def content(server: Server, **fields: Any) -> str:
    """A chat's answer, the same whole and streamed."""
    body = chat_body(max_tokens=400, **fields)
    choice = server.post(CHAT, body).json["choices"][0]
    chunks = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(server, CHAT, body)]
    assert "".join(chunks) == choice["message"]["content"]
    return str(choice["message"]["content"])


# Whatever the model says, these are what comes.
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": response_format(SCHEMA)}, r'\{\s*"name"\s*:\s*"[^"]{0,5}"\s*,\s*"age"\s*:\s*\d+\s*\}'),
    ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
    ({"guided_json": SCHEMA}, r'\{\s*"name".*\}'),
    ({"guided_json": json.dumps(SCHEMA)}, r'\{\s*"name".*\}'),
    ({"guided_regex": "[ab]{3}x"}, r"[ab]{3}x"),
    ({"guided_choice": ["yes", 'n"o\\ \u00e9\n']}, r'yes|n"o\\ \u00e9\n'),
    ({"guided_grammar": 'root ::= "<" [0-9] ">"'}, r"<[0-9]>"),
    ({"structured_outputs": {"json": SCHEMA}}, r'\{\s*"name".*\}'),
    ({"structured_outputs": {"regex": "[ab]{3}x"}}, r"[ab]{3}x"),
    ({"structured_outputs": {"choice": ["one", "two"]}}, r"one|two"),
    ({"structured_outputs": {"grammar": 'root ::= "<" [0-9] ">"'}}, r"<[0-9]>"),
    ({"structured_outputs": {"json_object": True}}, r"\{.*\}"),
]


@pytest.mark.parametrize(("fields", "pattern"), FORMS, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("said", ["", "n", '{"name": "Bob", "age": 12}', '{"a": [1, "\u00e9"]}'])
def test_the_reply_matches_whatever_the_model_says(
    server: Server, fields: dict[str, Any], pattern: str, said: str
) -> None:
    server.engine.script = [*said.encode(), *([ord('"')] * 50), *([END_ID] * 100)]
    text = content(server, **fields)
    assert re.fullmatch(pattern, text, re.DOTALL), text
    answer = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 400, **fields}).json["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (text, "stop")


def test_a_value_that_the_model_gets_right_is_left_alone(server: Server) -> None:
    text = '{"name": "Bob", "age": 12}'
    server.engine.script = reply_ids(text)
    assert content(server, response_format=response_format(SCHEMA)) == text


def test_a_cut_value_says_so(server: Server) -> None:
    server.engine.script = reply_ids('{"name": "Bob", "age": 12}')
    body = chat_body(max_tokens=7, response_format=response_format(SCHEMA))
    choice = server.post(CHAT, body).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"name"', "length")


@pytest.mark.parametrize("value", [None, {"type": "text"}])
def test_formats_that_ask_for_nothing(server: Server, value: Any) -> None:
    server.post(CHAT, chat_body(response_format=value, structured_outputs={}, guided_json=None))
    assert server.last_request().guide is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", ""),
        ({"response_format": []}, "response_format.type", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", ""),
        ({"response_format": {"type": "json_schema", "json_schema": 1}}, "response_format.json_schema.schema", ""),
        ({"response_format": response_format("{")}, "response_format.json_schema.schema", ""),
        ({"response_format": response_format(1)}, "response_format.json_schema.schema", ""),
        ({"response_format": response_format({"type": "banana"})}, "response_format", "banana"),
        (
            {"response_format": response_format({"type": "string", "pattern": "["})},
            "response_format",
            "cannot be enforced",
        ),
        (
            {"response_format": response_format({"type": "string", "pattern": "^a$", "maxLength": 8})},
            "response_format",
            "maxLength is not enforced",
        ),
        ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json", "properties.a.not"),
        ({"guided_json": {"$ref": "#/$defs/no"}}, "guided_json", "no"),
        ({"guided_regex": "("}, "guided_regex", "cannot be enforced"),
        ({"guided_regex": ""}, "guided_regex", ""),
        ({"guided_regex": 1}, "guided_regex", ""),
        ({"guided_regex": "a" * (1 << 18)}, "guided_regex", "characters"),
        ({"guided_choice": []}, "guided_choice", ""),
        ({"guided_choice": ["a", 1]}, "guided_choice", ""),
        ({"guided_choice": [""]}, "guided_choice", ""),
        ({"guided_choice": ["x"] * 1001}, "guided_choice", "1000"),
        ({"guided_grammar": "root ::= nope"}, "guided_grammar", "cannot be enforced"),
        ({"guided_grammar": "start ::= x"}, "guided_grammar", "cannot be enforced"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", ""),
        ({"structured_outputs": "x"}, "structured_outputs", ""),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "send one"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "end token"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_refused_before_any_token(server: Server, fields: dict[str, Any], param: str, words: str) -> None:
    for path, body in ((CHAT, chat_body(**fields)), (COMPLETIONS, {"prompt": "x", **fields})):
        for stream in (False, True):
            answer = server.post(path, body | {"stream": stream})
            assert (answer.status, answer.error["param"]) == (400, param), answer.error
            assert words in answer.error["message"]
            assert "/cpp/" not in answer.error["message"]
    assert not server.engine.requests


def test_a_schema_nested_too_deep_is_refused_before_it_is_compiled(server: Server) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    answer = server.post(CHAT, chat_body(guided_json=json.dumps(schema)))
    assert (answer.status, answer.error["param"]) == (400, "guided_json")


def test_many_schemas_one_after_the_other(server: Server) -> None:
    server.engine.script = [END_ID] * 100
    for i in range(60):
        schema = {"type": "object", "properties": {f"k{i}": {"type": "null"}}, "required": [f"k{i}"]}
        body = chat_body(max_tokens=60, response_format=response_format(schema))
        text = server.post(CHAT, body).json["choices"][0]["message"]["content"]
        assert json.loads(text) == {f"k{i}": None}


def test_tools_beside_a_format(server: Server) -> None:
    """Under "auto" the answer is what was asked for and no call; a forced call and a format exclude each other."""
    text = '{"name": "f", "arguments": {}}'
    server.engine.script = reply_ids(text)
    fields = {"tools": [TOOL], "response_format": {"type": "json_object"}}
    message = server.post(CHAT, chat_body(**fields)).json["choices"][0]["message"]
    assert message["content"] == text and "tool_calls" not in message
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        answer = server.post(CHAT, chat_body(tool_choice=choice, **fields))
        assert (answer.status, answer.error["param"]) == (400, "response_format")


def test_reasoning_comes_before_the_format() -> None:
    said = 'a"b</think>{"name": "Bob", "age": 12}'
    with running(ScriptedEngine(reply_ids("<think>" + said)), template=THINKING) as server:
        message = server.post(CHAT, chat_body(response_format=response_format(SCHEMA))).json["choices"][0]["message"]
        assert message["reasoning_content"] == 'a"b'
        assert json.loads(message["content"]) == {"name": "Bob", "age": 12}
        # The model must not end its reply inside the reasoning.
        server.engine.script = [*reply_ids("<think>ab"), *reply_ids("</think>x"), *[END_ID] * 50]
        message = server.post(CHAT, chat_body(guided_regex="x+")).json["choices"][0]["message"]
        assert message["content"] == "x"
        # With reasoning off there is none to wait for.
        server.engine.script = reply_ids("<think>" + said)
        message = server.post(CHAT, chat_body(guided_regex="[a-z]{2}", think=False)).json["choices"][0]["message"]
        assert re.fullmatch("[a-z]{2}", message["content"])


def test_a_budget_ends_the_reasoning() -> None:
    said = [*reply_ids("<think>thoughts without an end")[:-1], *b"answer", END_ID]
    with running(ScriptedEngine(said), template=THINKING) as server:
        body = chat_body(thinking_budget=8, return_token_ids=True)
        reply = server.post(CHAT, body).json
        message = reply["choices"][0]["message"]
        assert message["reasoning_content"] == "though"
        assert bytes(token for token in reply["jaxfold"]["token_ids"][7:8]) == b"\n"
        assert not server.post(CHAT, chat_body(thinking_budget=0)).json["choices"][0]["message"]["content"]
        assert server.last_request().guide is None
        body = chat_body(thinking_budget=8, guided_regex="an[a-z]*")
        message = server.post(CHAT, body).json["choices"][0]["message"]
        assert message["reasoning_content"] == "though" and message["content"].startswith("an")


@pytest.mark.parametrize("value", [-1, 1.5, "x", True])
def test_budgets_that_are_refused(server: Server, value: Any) -> None:
    assert server.post(CHAT, chat_body(thinking_budget=value)).error["param"] == "thinking_budget"


def test_a_budget_of_a_model_that_does_not_reason_changes_nothing() -> None:
    with running(ScriptedEngine(reply_ids("plain")), template=CHATML) as server:
        message = server.post(CHAT, chat_body(thinking_budget=2)).json["choices"][0]["message"]
        assert message["content"] == "plain"
