"""POST /v1/messages and count_tokens over a real socket: replies, streams, limits, errors."""

import json
from typing import Any

import pytest

from jaxfold.api.anthropic.fields import KEEP_THINKING
from jaxfold.api.exchange import single
from jaxfold.chat.service import ChatSettings
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import Answer
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.named_events import NamedStream
from tests.api.named_events import named_events
from tests.scripted_engine import ScriptedEngine

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BILLING = "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch="


def body(text: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 100, "messages": [{"role": "user", "content": text}], **fields}


def error_of(answer: Answer, status: int, kind: str) -> str:
    """The message of an error in Anthropic's shape."""
    value = answer.json
    assert answer.status == status, value
    assert set(value) == {"type", "error"} and value["type"] == "error"
    assert set(value["error"]) == {"type", "message"} and value["error"]["type"] == kind
    message: str = value["error"]["message"]
    assert message and "\n" not in message and ".py" not in message
    return message


def test_a_message(server: Server) -> None:
    server.engine.cached_tokens = 3
    answer = server.post(MESSAGES, body(model="other", temperature=0, metadata={"user_id": "u"}))
    assert answer.status == 200
    value = answer.json
    assert value["id"].startswith("msg_") and value["model"] == "other"
    assert (value["type"], value["role"]) == ("message", "assistant")
    assert value["content"] == [{"type": "text", "text": REPLY}]
    assert (value["stop_reason"], value["stop_sequence"]) == ("end_turn", None)
    usage = value["usage"]
    assert usage["input_tokens"] + 3 == len(server.last_request().prompt_ids)
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 0)
    assert usage["output_tokens"] == len(reply_ids(REPLY))
    assert usage["output_tokens_details"] == {"thinking_tokens": 0}


def test_the_same_prompt_and_tokens_as_a_chat(server: Server) -> None:
    chat = server.post(CHAT, {"messages": [{"role": "system", "content": "S"}, *chat_body()["messages"]]}).json
    prompt = server.last_request().prompt_ids
    value = server.post(MESSAGES, body(system="S")).json
    assert server.last_request().prompt_ids == prompt
    assert value["jaxfold"]["token_sha"] == chat["jaxfold"]["token_sha"]


def test_a_stream(server: Server) -> None:
    server.engine.cached_tokens = 2
    events = named_events(server, MESSAGES, body())
    kinds = [event["type"] for event in events]
    deltas = kinds.count("content_block_delta")
    assert kinds == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    prompt = len(server.last_request().prompt_ids)
    start = events[0]["message"]
    assert start["usage"]["input_tokens"] == prompt and start["content"] == [] and start["stop_reason"] is None
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == REPLY
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["input_tokens"] == prompt - 2
    whole = server.post(MESSAGES, body()).json
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["jaxfold"]["token_sha"] == whole["jaxfold"]["token_sha"]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_and_limits(server: Server, stream: bool) -> None:
    def last(**fields: Any) -> tuple[str, str | None, int]:
        if stream:
            event = named_events(server, MESSAGES, body(**fields))[-2]
            return event["delta"]["stop_reason"], event["delta"]["stop_sequence"], event["usage"]["output_tokens"]
        value = server.post(MESSAGES, body(**fields)).json
        return value["stop_reason"], value["stop_sequence"], value["usage"]["output_tokens"]

    assert last(stop_sequences=["zz", "lo"]) == ("stop_sequence", "lo", 5)
    assert last(max_tokens=1) == ("max_tokens", None, 1)


def test_the_quota_probe_of_claude_code(server: Server) -> None:
    answer = server.request(
        "POST",
        f"{MESSAGES}?beta=true",
        {"model": "claude-haiku", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
         "metadata": {"user_id": "user_1"}},
        {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "Authorization": "Bearer none"},
    )  # fmt: skip
    assert answer.status == 200 and answer.json["model"] == MODEL
    assert server.request("HEAD", "/").status == 200


def test_claude_codes_request(server: Server) -> None:
    hint = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    request = body(
        "start",
        max_tokens=32000,
        system=[{"type": "text", "text": BILLING + "1"}, {"type": "text", "text": "You are", **hint}],
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        tools=[{"name": "Bash", "description": "run", "input_schema": {"type": "object"}, **hint}],
    )
    request["messages"] += [
        {"role": "system", "content": [{"type": "text", "text": "note", **hint}]},
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        {"role": "user", "content": [{"type": "text", "text": "go on", **hint}]},
        {"role": "system", "content": "again"},
    ]
    assert server.post(MESSAGES, request).status == 200
    assert named_events(server, MESSAGES, request)[-1]["type"] == "message_stop"
    assert server.post(COUNT, request).json == {"input_tokens": len(server.last_request().prompt_ids)}


def test_a_new_billing_line_leaves_the_prompt_as_it_was(server: Server) -> None:
    for system in (
        [{"type": "text", "text": BILLING + "{}"}, {"type": "text", "text": "You are careful."}],
        BILLING + "{}\nYou are careful.",
    ):
        for value in ("fa690", "00b1c"):
            given = json.loads(json.dumps(system).replace("{}", value))
            assert server.post(MESSAGES, body(system=given)).status == 200
    assert len({request.prompt_ids for request in server.engine.requests}) == 1


def test_title_requests_run_in_the_background(server: Server) -> None:
    server.post(MESSAGES, body("hi", system=[{"type": "text", "text": "Write a short title."}]))
    assert server.last_request().background
    server.post(MESSAGES, body("hi", system="Be brief."))
    assert not server.last_request().background


def test_a_limit_above_the_room_is_lowered(server: Server) -> None:
    assert server.post(MESSAGES, body(max_tokens=10**6)).status == 200
    request = server.last_request()
    assert request.max_tokens == server.engine.context_length - len(request.prompt_ids)
    for absent in (None, 0, -1):
        assert server.post(MESSAGES, body(max_tokens=absent)).status == 200
        assert server.last_request().max_tokens == ChatSettings().default_max_tokens
    with running(ScriptedEngine(reply_ids("x")), messages_overflow="reject") as strict:
        message = error_of(strict.post(MESSAGES, body(max_tokens=10**6)), 400, "invalid_request_error")
        assert "prompt is too long" in message


def test_a_prompt_that_does_not_fit(server: Server) -> None:
    message = error_of(server.post(MESSAGES, body("x" * 70_000)), 400, "invalid_request_error")
    assert message.startswith("prompt is too long: ") and f"> {server.engine.context_length} maximum" in message


def test_count_tokens_has_no_limit_and_needs_no_reply(server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "x" * 70_000}]}
    assert server.post(COUNT, asked).json["input_tokens"] > 70_000
    asked["messages"].append({"role": "assistant", "content": "half"})
    assert server.post(COUNT, asked).status == 200
    assert not server.engine.requests


def test_thinking_is_off_unless_asked_for() -> None:
    with running(ScriptedEngine(reply_ids("<think>\nHm.\n</think>\n\nYes.")), template=THINKING) as server:
        chat = server.post(CHAT, chat_body(enable_thinking=False))
        off = server.last_request().prompt_ids
        assert chat.status == 200
        for fields in ({}, {"thinking": {"type": "disabled"}}, {"output_config": {"effort": "high"}}):
            assert server.post(MESSAGES, body(**fields)).status == 200
            assert server.last_request().prompt_ids == off
        asked = body(thinking={"type": "adaptive", "display": "omitted"})
        value = server.post(MESSAGES, asked).json
        assert server.last_request().prompt_ids != off
        assert value["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Yes."},
        ]
        assert value["usage"]["output_tokens_details"]["thinking_tokens"] > 0
        events = named_events(server, MESSAGES, asked)
        blocks = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert blocks == ["thinking", "text"]
        thoughts = [event["delta"] for event in events if event.get("delta", {}).get("type") == "thinking_delta"]
        assert "".join(delta["thinking"] for delta in thoughts) == "Hm."


def test_adaptive_thinking_on_a_model_that_does_not_reason(server: Server) -> None:
    assert server.post(MESSAGES, body(thinking={"type": "adaptive"}, output_config={"effort": "max"})).status == 200


def test_tool_results_come_before_the_users_words(server: Server) -> None:
    request = body("Use it.")
    request["messages"] += [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "T", "signature": ""},
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "and?"},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "1"},
                                                                          {"type": "text", "text": "2"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "boom", "is_error": True},
        ]},
    ]  # fmt: skip
    assert server.post(MESSAGES, request).status == 200
    prompt = server.last_request().prompt_ids
    chat = [
        {"role": "user", "content": "Use it."},
        {"role": "assistant", "content": "ab", "reasoning_content": "T", "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "toolu_2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "1\n2"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Tool error: boom"},
        {"role": "user", "content": "and?"},
    ]  # fmt: skip
    assert server.post(CHAT, {"messages": chat}).status == 200
    assert server.last_request().prompt_ids == prompt


def test_tools_are_shown_as_a_chats(server: Server) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "weather", "description": "Now", "input_schema": schema, "type": "custom"}
    assert server.post(MESSAGES, body(tools=[tool])).status == 200
    prompt = server.last_request().prompt_ids
    function = {"name": "weather", "description": "Now", "parameters": schema}
    assert server.post(CHAT, chat_body(tools=[{"type": "function", "function": function}])).status == 200
    assert server.last_request().prompt_ids == prompt
    assert server.post(MESSAGES, body(tools=[tool], tool_choice={"type": "none"})).status == 200
    plain = server.last_request().prompt_ids
    assert server.post(MESSAGES, body()).status == 200
    assert server.last_request().prompt_ids == plain != prompt


PREFILL: dict[str, Any] = {"messages": [{"role": "assistant", "content": "Once"}]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "system", "content": BILLING}]}, "messages"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "thinking"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image"}]}]}]},
        "messages[0].content[0].content[0]",
    ),
    (PREFILL, "messages[0].role"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]},
                      {"role": "user", "content": "x"}]},
        "redacted thinking",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": [1]}]},
                      {"role": "user", "content": "x"}]},
        "messages[0].content[0].input",
    ),
    ({"messages": [{"role": "system", "content": "x", "clear_at": "next_user_message"}]}, "messages[0].clear_at"),
    ({"messages": [{"role": "system", "content": "x", "output_config": {}}]}, "messages[0].output_config"),
    ({"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]}, "messages[0].content[0].type"),
    ({"system": 1}, "system"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "forever"}}]}, "system[0].cache_control"),
    ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_p": 0}, "top_p"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"stream": 1}, "stream"),
    ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ({"metadata": []}, "metadata"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"),
    ({"context_management": {"edits": [dict(KEEP_THINKING) | {"keep": {}}]}}, "context_management.edits[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [TOOL | {"description": 1}]}, "tools[0].description"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL | {"input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": [TOOL | {"allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"n": 2}, "n"),
    ({"stop": ["x"]}, "stop"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"model": 1}, "model"),
)  # fmt: skip


@pytest.mark.parametrize(("fields", "path"), WRONG, ids=lambda value: json.dumps(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_named_before_anything_is_sent(
    server: Server, fields: dict[str, Any], path: str, stream: bool
) -> None:
    answer = server.post(MESSAGES, {**body(), "stream": stream, **fields})
    assert path in error_of(answer, 400, "invalid_request_error")
    if fields != PREFILL:
        assert path in error_of(server.post(COUNT, {**body(), **fields}), 400, "invalid_request_error")
    assert not server.engine.requests


def test_harmless_values_pass(server: Server) -> None:
    for fields in (
        {"mcp_servers": []}, {"container": None}, {"service_tier": "auto"}, {"speed": "standard"}, {"betas": ["x"]},
        {"inference_geo": "eu"}, {"diagnostics": {"previous_message_id": None}}, {"something_new": {"a": 1}},
        {"tools": [], "tool_choice": {"type": "auto"}}, {"thinking": None}, {"context_management": None},
        {"output_config": {}}, {"metadata": None}, {"stop_sequences": []}, {"system": []}, {"system": ""},
        {"messages": [{"role": "user", "content": None}]}, {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"temperature": None, "top_p": 1, "top_k": 0}, {"seed": 7, "draft": False, "priority": "background"},
    ):  # fmt: skip
        answer = server.post(MESSAGES, {**body(), **fields})
        assert answer.status == 200, (fields, answer.body)


def test_errors_of_the_server_in_the_routes_own_shape(server: Server) -> None:
    server.engine.refuse = QueueFullError("full")
    answer = server.post(MESSAGES, body())
    error_of(answer, 529, "overloaded_error")
    assert answer.headers["retry-after"]
    server.engine.refuse = NotReadyError("loading")
    error_of(server.post(MESSAGES, body(stream=True)), 503, "overloaded_error")
    server.engine.refuse = None
    error_of(server.get(MESSAGES), 405, "invalid_request_error")
    error_of(server.get("/v1/messages/batches"), 404, "not_found_error")
    error_of(server.post(MESSAGES, b"{"), 400, "invalid_request_error")
    error_of(server.post(MESSAGES, b"x" * (1 << 21)), 413, "request_too_large")
    with running(ScriptedEngine(reply_ids("x")), strict_model=True) as strict:
        assert "gpt-9" in error_of(strict.post(MESSAGES, body(model="gpt-9")), 404, "not_found_error")
    server.works()


def test_a_failure_in_a_stream_is_an_error_event(server: Server) -> None:
    server.engine.fail_after = 3
    events = named_events(server, MESSAGES, body())
    assert events[-1]["type"] == "error" and set(events[-1]["error"]) == {"type", "message"}
    assert events[-1]["error"]["type"] == "api_error"
    assert not any(event["type"] == "message_stop" for event in events)
    error_of(server.post(MESSAGES, body()), 500, "api_error")
    server.engine.fail_after = None
    server.works()


def test_pings_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "KEEP_ALIVE_S", 0.01)
    with running(ScriptedEngine(hang=True)) as server:
        stream = NamedStream(server.port, MESSAGES, body())
        events = stream.events()
        kinds = [next(events)["type"] for _ in range(5)]
        assert kinds == ["message_start", "ping", "ping", "ping", "ping"]
        stream.close()
        wait_until(lambda: server.engine.cancelled)


def test_a_client_that_leaves_ends_its_reply() -> None:
    with running(ScriptedEngine([97, 98], hang=True)) as server:
        stream = NamedStream(server.port, MESSAGES, body())
        next(stream.events())
        stream.close()
        wait_until(lambda: server.engine.cancelled)


def test_paths(server: Server) -> None:
    for path in (
        "/messages",
        "/anthropic/v1/messages",
        "/anthropic/messages",
        "/v1/messages/",
        "/v1/messages?beta=true",
    ):
        assert server.post(path, body()).status == 200
        error_of(server.post(path, {}), 400, "invalid_request_error")
