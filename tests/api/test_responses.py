"""POST /v1/responses over a real socket: replies, streams, the store, errors."""

import json
from typing import Any

import pytest

from jaxfold.api.responses.store import StoreSettings
from jaxfold.chat.service import ChatSettings
from jaxfold.runtime.api import QueueFullError
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.named_events import NamedStream
from tests.api.named_events import named_events
from tests.scripted_engine import ScriptedEngine

RESPONSES = "/v1/responses"
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TEXT_PART = {"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}


def prompt_of(server: Server, path: str, body: dict[str, Any]) -> tuple[int, ...]:
    """The prompt that a request runs."""
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    return server.last_request().prompt_ids


def test_a_response(server: Server) -> None:
    server.engine.cached_tokens = 3
    answer = server.post(RESPONSES, {"input": "hi", "model": "other", "metadata": {"a": "b"}, "temperature": 0.5})
    assert answer.status == 200
    value = answer.json
    assert value["id"].startswith("resp_") and value["object"] == "response" and value["model"] == "other"
    assert (value["status"], value["error"], value["incomplete_details"]) == ("completed", None, None)
    assert value["created_at"] <= value["completed_at"]
    [item] = value["output"]
    assert item["id"].startswith("msg_")
    assert item == {
        "id": item["id"], "type": "message", "role": "assistant", "status": "completed", "content": [TEXT_PART]
    }  # fmt: skip
    prompt, reply = len(server.last_request().prompt_ids), len(reply_ids(REPLY))
    assert value["usage"] == {
        "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": reply, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + reply,
    }  # fmt: skip
    echo = {
        "background": False, "instructions": None, "max_output_tokens": None, "metadata": {"a": "b"},
        "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
        "store": True, "temperature": 0.5, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_p": 1.0, "truncation": "disabled", "user": None,
    }  # fmt: skip
    assert {name: value[name] for name in echo} == echo


def test_the_same_prompt_and_tokens_as_a_chat(server: Server) -> None:
    chat = server.post(CHAT, {"messages": [{"role": "system", "content": "S"}, *chat_body()["messages"]]}).json
    prompt = server.last_request().prompt_ids
    value = server.post(RESPONSES, {"input": "hi", "instructions": "S"}).json
    assert server.last_request().prompt_ids == prompt
    assert value["jaxfold"]["token_sha"] == chat["jaxfold"]["token_sha"]


def test_a_stream(server: Server) -> None:
    events = named_events(server, RESPONSES, {"input": "hi"})
    kinds = [event["type"] for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["usage"] is None
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == REPLY
    final = events[-1]["response"]
    assert final["output"][0] == events[-2]["item"]
    assert {event["item_id"] for event in events if "item_id" in event} == {final["output"][0]["id"]}
    whole = server.post(RESPONSES, {"input": "hi"}).json
    assert whole["usage"] == final["usage"]
    assert whole["jaxfold"]["token_sha"] == final["jaxfold"]["token_sha"]
    assert server.get(f"{RESPONSES}/{final['id']}").json == final


def test_a_reply_cut_by_its_limit(server: Server) -> None:
    for stream in (False, True):
        asked = {"input": "hi", "max_output_tokens": 2}
        value = named_events(server, RESPONSES, asked)[-1]["response"] if stream else server.post(RESPONSES, asked).json
        assert value["status"] == "incomplete" and value["incomplete_details"] == {"reason": "max_output_tokens"}
        assert value["output"][0]["status"] == "incomplete" and value["completed_at"] is None
        assert value["usage"]["output_tokens"] == 2
        assert server.get(f"{RESPONSES}/{value['id']}").status == 200
    assert named_events(server, RESPONSES, asked)[-1]["type"] == "response.incomplete"


def test_an_omitted_limit_is_the_rest_of_the_context(server: Server) -> None:
    for absent in ({}, {"max_output_tokens": None}, {"max_output_tokens": 0}, {"max_output_tokens": -1}):
        assert server.post(RESPONSES, {"input": "hi", **absent}).status == 200
        request = server.last_request()
        assert request.max_tokens == server.engine.context_length - len(request.prompt_ids)
    with running(ScriptedEngine(reply_ids("x")), default_is_rest=False) as other:
        assert other.post(RESPONSES, {"input": "hi"}).status == 200
        assert other.last_request().max_tokens == ChatSettings().default_max_tokens
    error = server.post(RESPONSES, {"input": "hi", "max_output_tokens": 10**6}).error
    assert error["code"] == "context_length_exceeded" and "This model's maximum context length is" in error["message"]


def test_reasoning_and_an_empty_answer() -> None:
    with running(ScriptedEngine(reply_ids("<think>\nHm.\n</think>\n\nYes.")), template=THINKING) as server:
        value = server.post(RESPONSES, {"input": "hi"}).json
        assert [item["type"] for item in value["output"]] == ["reasoning", "message"]
        thought = value["output"][0]
        assert thought["id"].startswith("rs_") and thought["summary"] == []
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert value["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        events = named_events(server, RESPONSES, {"input": "hi"})
        assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta") == "Hm."
        on = server.last_request().prompt_ids
        assert prompt_of(server, RESPONSES, {"input": "hi", "reasoning": {"effort": "none"}}) != on
        assert prompt_of(server, RESPONSES, {"input": "hi", "reasoning": {"effort": "low", "summary": "auto"}}) == on
        server.engine.script = reply_ids("<think>\nHm.\n</think>")
        for stream in (False, True):
            value = (
                named_events(server, RESPONSES, {"input": "hi"})[-1]["response"]
                if stream
                else server.post(RESPONSES, {"input": "hi"}).json
            )
            assert [item["type"] for item in value["output"]] == ["reasoning", "message"]
            assert value["output"][1]["content"][0]["text"] == ""


def test_items_become_the_messages_of_a_chat(server: Server) -> None:
    items = [
        {"role": "user", "content": "start"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"cmd": 1}', "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "shell", "arguments": '{"cmd": '},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "not run"}]},
        {"type": "message", "role": "developer", "content": "Context was compacted."},
        {"role": "user", "content": [{"type": "input_text", "text": "Go "}, {"type": "input_text", "text": "on."}]},
    ]
    chat = [
        {"role": "user", "content": "start"},
        {"role": "assistant", "content": "a", "reasoning_content": "T", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": '}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "tool", "tool_call_id": "c2", "content": "not run"},
        {"role": "developer", "content": "Context was compacted."},
        {"role": "user", "content": "Go on."},
    ]  # fmt: skip
    assert prompt_of(server, RESPONSES, {"input": items}) == prompt_of(server, CHAT, {"messages": chat})


def test_codex_tools(server: Server) -> None:
    inner = {**FUNCTION, "name": "read", "description": "Read.", "output_schema": {}}
    tools = [
        {**FUNCTION, "description": "F.", "strict": False},
        {"type": "custom", "name": "patch", "description": "P.", "format": {
            "type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "namespace", "name": "files", "description": "Files.", "tools": [inner, FUNCTION]},
    ]  # fmt: skip
    given = {"input": "hi", "tools": tools, "store": False, "stream": False}
    prompt = prompt_of(server, RESPONSES, given)
    text_schema = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    schema = {"type": "object"}
    functions: list[dict[str, Any]] = [
        {"name": "f", "description": "F.", "parameters": schema, "strict": False},
        {
            "name": "patch",
            "description": "P.\n\nThe input follows this grammar:\nstart: X",
            "parameters": text_schema,
        },
        {"name": "files__read", "description": "Files.\n\nRead.", "parameters": schema},
        {"name": "files__f", "parameters": schema},
    ]
    chat_tools = [{"type": "function", "function": function} for function in functions]
    assert prompt_of(server, CHAT, chat_body(tools=chat_tools)) == prompt
    warnings = server.post(RESPONSES, given).json["jaxfold"]["warnings"]
    assert [warning.split()[0] for warning in warnings] == ["tools[1].format", "tools[2].tools[0].output_schema"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "f", "namespace": "files"}]}  # fmt: skip
    assert prompt_of(server, RESPONSES, given | {"tool_choice": allowed}) == prompt_of(
        server, CHAT, chat_body(tools=chat_tools[3:])
    )
    assert prompt_of(server, RESPONSES, given | {"tool_choice": "none"}) == prompt_of(server, CHAT, chat_body())
    history = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c", "name": "read", "namespace": "files", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "z"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "w"},
    ]
    prompt = prompt_of(server, RESPONSES, given | {"input": history})
    shown = bytes(token for token in prompt if token < 256).decode()
    assert "files__read" in shown and '"input": "z"' in shown


def test_hosted_tools_are_refused_or_left_out(server: Server) -> None:
    tools = [{"type": "web_search"}, FUNCTION, {"type": "web_search_2025_08_26"}]
    error = server.post(RESPONSES, {"input": "hi", "tools": tools}).error
    assert error["param"] == "tools[0].type"
    assert "web_search" in error["message"] and "--hosted-tools drop" in error["message"]
    with running(ScriptedEngine(reply_ids("x")), hosted_tools="drop") as other:
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}, FUNCTION]}
        value = other.post(RESPONSES, {"input": "hi", "tools": tools, "tool_choice": choice}).json
        assert value["jaxfold"]["dropped_tools"] == ["web_search", "web_search_2025_08_26"]
        assert prompt_of(other, RESPONSES, {"input": "hi", "tools": [FUNCTION]}) == other.engine.requests[0].prompt_ids
        value = other.post(RESPONSES, {"input": "hi", "include": ["reasoning.encrypted_content"]}).json
        assert value["jaxfold"]["dropped_include"] == ["reasoning.encrypted_content"]
        assert other.post(RESPONSES, {"input": "hi", "include": [1]}).error["param"] == "include"
        assert other.post(RESPONSES, {"input": "hi", "tools": [{"type": "teleport"}]}).error["param"] == "tools[0].type"


def test_a_conversation_goes_on_from_a_stored_response(server: Server) -> None:
    first = server.post(RESPONSES, {"input": "one", "instructions": "S"}).json
    second = server.post(RESPONSES, {"input": "two", "previous_response_id": first["id"], "instructions": "T"}).json
    assert second["previous_response_id"] == first["id"]
    third = {"input": [{"role": "user", "content": "three"}], "previous_response_id": second["id"]}
    prompt = prompt_of(server, RESPONSES, third)
    chat = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": REPLY},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": REPLY},
        {"role": "user", "content": "three"},
    ]
    assert prompt_of(server, CHAT, {"messages": chat}) == prompt
    assert server.request("DELETE", f"{RESPONSES}/{first['id']}").json == {
        "id": first["id"], "object": "response", "deleted": True
    }  # fmt: skip
    error = server.post(RESPONSES, third).error
    assert error["param"] == "previous_response_id" and first["id"] in error["message"]


def test_what_is_not_stored(server: Server) -> None:
    kept = server.post(RESPONSES, {"input": "one", "store": False}).json
    assert kept["store"] is False
    for response_id in (kept["id"], "resp_missing", "..%2f", "a%0ab"):
        for method in ("GET", "DELETE"):
            answer = server.request(method, f"{RESPONSES}/{response_id}")
            assert answer.status == 404, answer.body
    error = server.get(f"{RESPONSES}/resp_missing").error
    assert error["param"] == "response_id" and "resp_missing" in error["message"]
    answer = server.post(RESPONSES, {"input": "and then?", "previous_response_id": "resp_missing"})
    assert answer.status == 400 and answer.error["param"] == "previous_response_id"
    assert server.get(f"{RESPONSES}/resp_missing?stream=true").error["param"] == "stream"
    assert server.get(f"{RESPONSES}/resp_missing/input_items").status == 404


def test_the_store_has_limits() -> None:
    engine = ScriptedEngine(reply_ids("x"))
    with running(engine, responses=StoreSettings(max_entries=2)) as server:
        ids = [server.post(RESPONSES, {"input": "hi"}).json["id"] for _ in range(3)]
        assert [server.get(f"{RESPONSES}/{one}").status for one in ids] == [404, 200, 200]
    with running(ScriptedEngine(reply_ids("x")), responses=StoreSettings(max_mb=0.0001)) as server:
        value = server.post(RESPONSES, {"input": "hi"}).json
        assert value["status"] == "completed" and value["store"] is False
        assert "could not be stored" in value["jaxfold"]["warnings"][0]
        assert named_events(server, RESPONSES, {"input": "hi"})[-1]["response"]["store"] is False


def test_the_store_answers_while_the_model_is_busy_or_gone(server: Server) -> None:
    value = server.post(RESPONSES, {"input": "hi"}).json
    server.engine.refuse = QueueFullError("full")
    assert server.post(RESPONSES, {"input": "hi"}).status == 429
    assert server.get(f"/responses/{value['id']}").json == value
    assert server.get(f"/openai/v1/responses/{value['id']}").json == value


def test_a_failure_in_a_stream(server: Server) -> None:
    server.engine.fail_after = 3
    events = named_events(server, RESPONSES, {"input": "hi"})
    last = events[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and last["response"]["error"]["message"]
    assert server.get(f"{RESPONSES}/{last['response']['id']}").status == 404
    assert server.post(RESPONSES, {"input": "hi"}).status == 500
    server.engine.fail_after = None
    server.works()


def test_a_client_that_leaves_ends_its_reply() -> None:
    with running(ScriptedEngine([97, 98], hang=True)) as server:
        stream = NamedStream(server.port, RESPONSES, {"input": "hi"})
        next(stream.events())
        stream.close()
        wait_until(lambda: server.engine.cancelled)


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


def part(**fields: Any) -> dict[str, Any]:
    return item(role="user", content=[fields])


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{**FUNCTION, **fields}]}


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 1}, "input"),
    ({"input": ["x"]}, "input[0]"),
    (item(role="tool", content="x"), "input[0].role"),
    (item(type="message"), "input[0].role"),
    (item(role="user", content=1), "input[0].content"),
    (part(text="x"), "input[0].content[0]"),
    (part(type="input_text"), "input[0].content[0].text"),
    (part(type="input_image", image_url="data:image/png;base64,"), "input[0].content[0].type"),
    (part(type="input_file", file_id="file_1"), "input[0].content[0].type"),
    (part(type="input_audio"), "input[0].content[0].type"),
    (part(type="smell"), "input[0].content[0].type"),
    (item(id="msg_1"), "input[0].type"),
    (item(type="item_reference", id="msg_1"), "input[0].type"),
    (item(type="web_search_call", id="ws_1"), "input[0].type"),
    (item(type="compaction", encrypted_content="x"), "input[0].type"),
    (item(type="reasoning", summary=[], encrypted_content="x"), "input[0].encrypted_content"),
    (item(type="reasoning", content="x"), "input[0].content"),
    (item(type="reasoning", content=[{"type": "image"}]), "input[0].content[0].type"),
    (item(type="function_call", name="f", arguments="{}"), "input[0].call_id"),
    (item(type="function_call", call_id="c", arguments="{}"), "input[0].name"),
    (item(type="function_call", call_id="c", name="f", arguments=[]), "input[0].arguments"),
    (item(type="custom_tool_call", call_id="c", name="f"), "input[0].input"),
    (item(type="function_call_output", output="x"), "input[0].call_id"),
    (item(type="function_call_output", call_id="c"), "input[0].output"),
    (item(type="function_call_output", call_id="c", output=[{"type": "input_image"}]), "input[0].output[0].type"),
    ({"instructions": []}, "instructions"),
    ({"max_output_tokens": -5}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"seed": 1.5}, "seed"),
    ({"stop": [1]}, "stop"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"store": "no"}, "store"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {str(at): "" for at in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": 1}}, "metadata"),
    ({"previous_response_id": 1}, "previous_response_id"),
    ({"reasoning": "low"}, "reasoning"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": "yes"}}}, "text.format.strict"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"tools": {}}, "tools"),
    ({"tools": [1]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    (tool(name=""), "tools[0].name"),
    (tool(parameters=[]), "tools[0].parameters"),
    (tool(strict=1), "tools[0].strict"),
    (tool(description=1), "tools[0].description"),
    (tool(defer_loading=True), "tools[0].defer_loading"),
    (tool(allowed_callers=["programmatic"]), "tools[0].allowed_callers"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
    ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar"}}]}, "tools[0].format"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}, "tools[0].tools[0].type"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].type"),
    ({"tools": [{"type": "computer_use_preview"}]}, "tools[0].type"),
    ({"tools": [FUNCTION], "tool_choice": 1}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}}, "tool_choice.mode"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"background": True}, "background"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"max_tool_calls": "x"}, "max_tool_calls"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"user": 1}, "user"),
)


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: json.dumps(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_named_before_anything_is_sent(
    server: Server, fields: dict[str, Any], param: str, stream: bool
) -> None:
    streamed = {"stream": True} if stream and fields != {"stream_options": {}} else {}
    answer = server.post(RESPONSES, {"input": "hi", **streamed, **fields})
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert param.split(".")[0] in answer.error["message"]
    assert not server.engine.requests


def test_harmless_values_pass(server: Server) -> None:
    for fields in (
        {"background": False}, {"include": []}, {"truncation": "disabled"}, {"top_logprobs": 0}, {"conversation": None},
        {"service_tier": "auto"}, {"prompt_cache_key": "k"}, {"text": {}}, {"text": {"format": {"type": "text"}}},
        {"text": {"verbosity": "medium"}}, {"reasoning": None}, {"reasoning": {"effort": None, "summary": "auto"}},
        {"reasoning": {"effort": "none"}}, {"tools": [], "tool_choice": "auto"}, {"metadata": None},
        {"parallel_tool_calls": False}, {"previous_response_id": ""}, {"something_new": 1}, {"max_tool_calls": 3},
        {"draft": False, "priority": "background", "seed": 3, "min_p": 0.1, "stop": "zz", "return_token_ids": True},
        item(type="reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "x"}]),
        item(role="assistant", content="half"), item(role="user", content=None), item(type=None, role="user"),
        {"text": {"format": {"type": None}}},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ):  # fmt: skip
        answer = server.post(RESPONSES, {"input": "hi", **fields})
        assert answer.status == 200, (fields, answer.body)
