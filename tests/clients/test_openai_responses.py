"""The Responses part of the released openai client against a real server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from openai.types.responses import ResponseFunctionToolCall

from jaxfold.runtime.api import QueueFullError
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, w\u00f6rld \U0001f600!"
MODEL = "scripted"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Now",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "%s", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(REPLY)), strict_model=True, template=THINKING) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def plain(response: Response) -> dict[str, Any]:
    """What two replies to the same request have in common."""
    value = response.to_dict()
    return {"output": [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in value["output"]],  # type: ignore[attr-defined]
            "usage": value["usage"], "status": value["status"]}  # fmt: skip


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="hi", instructions="Be brief.", temperature=0)
    assert response.output_text == REPLY and response.status == "completed"
    assert response.usage is not None and response.usage.output_tokens == len(reply_ids(REPLY))
    assert response.model_extra is not None and response.model_extra["jaxfold"]["sampling"] == "greedy"
    with client.responses.stream(model=MODEL, input="hi", instructions="Be brief.", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == REPLY and final.output_text == REPLY
    assert plain(response)["usage"] == plain(final)["usage"]


def test_stored_responses(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(model=MODEL, input="one")
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    prompt = server.last_request().prompt_ids
    history: Any = [{"role": "user", "content": "one"}, *first.output, {"role": "user", "content": "two"}]
    client.responses.create(model=MODEL, input=history, store=False)
    assert server.last_request().prompt_ids == prompt
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.retrieve(first.id)
    assert gone.value.param == "response_id"
    with pytest.raises(openai.BadRequestError) as broken:
        client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    assert broken.value.param == "previous_response_id"


def test_reasoning(client: openai.OpenAI, server: Server) -> None:
    server.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    response = client.responses.create(model=MODEL, input="hi", reasoning={"effort": "low", "summary": "auto"})
    thought = response.output[0]
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "Hm."
    assert response.output_text == "Yes."
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model=MODEL, input="hi") as stream:
        thoughts = "".join(event.delta for event in stream if event.type == "response.reasoning_text.delta")
    assert thoughts == "Hm."


@pytest.mark.parametrize("streamed", [False, True])
def test_tools(client: openai.OpenAI, server: Server, streamed: bool) -> None:
    server.engine.script = reply_ids("I look.\n" + CALL % "weather" + "\n" + CALL % "sky__weather")
    tools: Any = [WEATHER, {"type": "namespace", "name": "sky", "description": "", "tools": [WEATHER]}]
    if streamed:
        events = list(client.responses.create(model=MODEL, input="hi", tools=tools, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.completed"
        response = events[-1].response
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert [event.arguments for event in done] == ['{"city":"Paris"}'] * 2
    else:
        response = client.responses.create(model=MODEL, input="hi", tools=tools)
    calls = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(call.name, call.namespace, call.arguments) for call in calls] == [
        ("weather", None, '{"city":"Paris"}'), ("weather", "sky", '{"city":"Paris"}')
    ]  # fmt: skip
    assert response.output_text.strip() == "I look."
    server.engine.script = reply_ids(REPLY)
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    answer = client.responses.create(model=MODEL, input=results, previous_response_id=response.id, tools=tools)
    assert answer.output_text == REPLY
    prompt = server.last_request().prompt_ids
    shown = bytes(token for token in prompt if token < 256)
    assert shown.count(b"sunny") == 2 and b"sky__weather" in shown
    history: Any = [{"role": "user", "content": "hi"}, *response.output, *results]
    client.responses.create(model=MODEL, input=history, tools=tools, store=False)
    assert server.last_request().prompt_ids == prompt


def test_codex_sends_this(client: openai.OpenAI, server: Server) -> None:
    tools: Any = [WEATHER, {"type": "namespace", "name": "sky", "description": "Sky.", "tools": [WEATHER]}]
    history: Any = [
        {"type": "message", "id": "mine_1", "role": "developer", "content": [{"type": "input_text", "text": "Rules"}]},
        {"type": "message", "id": "mine_2", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ]
    with client.responses.stream(
        model=MODEL, input=history, tools=tools, store=False, parallel_tool_calls=True, tool_choice="auto", include=[]
    ) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    request = server.last_request()
    assert request.max_tokens == server.engine.context_length - len(request.prompt_ids)


def test_errors_become_the_clients_exceptions(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=MODEL, input="hi", include=["reasoning.encrypted_content"])
    assert (bad.value.param, bad.value.type) == ("include", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model=MODEL, input="x" * 70_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input="hi")
    assert missing.value.code == "model_not_found"
    server.engine.refuse = QueueFullError("full")
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model=MODEL, input="hi", stream=True)
    server.engine.refuse = None
    server.engine.fail_after = 2
    events = list(client.responses.create(model=MODEL, input="hi", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None and events[-1].response.error.code == "server_error"


def test_leaving_a_stream_ends_the_reply(client: openai.OpenAI, server: Server) -> None:
    server.engine.script, server.engine.hang = [97], True
    stream = client.responses.create(model=MODEL, input="hi", stream=True)
    assert next(iter(stream)).type == "response.created"
    stream.close()
    wait_until(lambda: server.engine.cancelled)
