"""The released anthropic client against a real server: what people's programs will do."""

import json
from collections.abc import Iterator

import anthropic
import pytest

from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from tests.api.harness import END_ID
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, w\u00f6rld \U0001f600!"
MODEL = "scripted"
ASK: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hi"}]
WEATHER: anthropic.types.ToolParam = {
    "name": "weather",
    "description": "Now",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(REPLY)), strict_model=True, template=THINKING) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_a_message(client: anthropic.Anthropic, server: Server) -> None:
    server.engine.cached_tokens = 4
    message = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, system="Be brief.")
    assert isinstance(message.content[0], anthropic.types.TextBlock)
    assert message.content[0].text == REPLY
    assert message.stop_reason == "end_turn"
    assert message.usage.cache_read_input_tokens == 4
    assert message.usage.input_tokens == len(server.last_request().prompt_ids) - 4
    assert message.usage.output_tokens == len(reply_ids(REPLY))
    count = client.messages.count_tokens(model=MODEL, messages=ASK, system="Be brief.")
    assert count.input_tokens == len(server.last_request().prompt_ids)


def test_models(client: anthropic.Anthropic, server: Server) -> None:
    (model,) = client.models.list(limit=1)
    assert (model.id, model.type, model.max_input_tokens) == (MODEL, "model", server.engine.context_length)
    assert client.models.retrieve(MODEL) == model
    assert [one.id for one in client.beta.models.list()] == [MODEL]
    with pytest.raises(anthropic.NotFoundError, match="nope"):
        client.models.retrieve("nope")
    prefixed = client.with_options(base_url=f"{server.url}/anthropic")
    assert prefixed.models.retrieve(MODEL) == next(iter(prefixed.models.list())) == model


def test_a_schema_and_a_forced_call(client: anthropic.Anthropic, server: Server) -> None:
    server.engine.script = reply_ids('{"a": 3}') + reply_ids("x") * 99
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    config: anthropic.types.OutputConfigParam = {"format": {"type": "json_schema", "schema": schema}}
    (block,) = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, output_config=config).content
    assert isinstance(block, anthropic.types.TextBlock) and json.loads(block.text) == {"a": 3}
    server.engine.script = [*b"No.", *b'"' * 9, *([END_ID] * 99)]
    choice: anthropic.types.ToolChoiceParam = {"type": "any"}
    message = client.messages.create(model=MODEL, max_tokens=300, messages=ASK, tools=[WEATHER], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    assert {block.name for block in message.content if isinstance(block, anthropic.types.ToolUseBlock)} == {"weather"}


def test_a_stream(client: anthropic.Anthropic, server: Server) -> None:
    server.engine.cached_tokens = 4
    with client.messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        assert "".join(stream.text_stream) == REPLY
        final = stream.get_final_message()
    whole = client.messages.create(model=MODEL, max_tokens=100, messages=ASK)
    assert final.usage == whole.usage
    assert final.content == whole.content or [one.to_dict() for one in final.content] == [
        one.to_dict() for one in whole.content
    ]
    raw = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, stream=True)
    assert [event.type for event in raw][-1] == "message_stop"


def test_thinking(client: anthropic.Anthropic, server: Server) -> None:
    server.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    with client.messages.stream(model=MODEL, max_tokens=100, messages=ASK, thinking={"type": "adaptive"}) as stream:
        final = stream.get_final_message()
    thought, text = final.content
    assert isinstance(thought, anthropic.types.ThinkingBlock) and thought.thinking == "Hm."
    assert isinstance(text, anthropic.types.TextBlock) and text.text == "Yes."
    server.engine.script = reply_ids(REPLY)
    again = client.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=[*ASK, final.to_param(), {"role": "user", "content": "Sure?"}],
        thinking={"type": "disabled"},
    )
    assert again.stop_reason == "end_turn"


@pytest.mark.parametrize("streamed", [False, True])
def test_tools(client: anthropic.Anthropic, server: Server, streamed: bool) -> None:
    server.engine.script = reply_ids(f"I look.\n{CALL}\n{CALL}")
    asked = {"model": MODEL, "max_tokens": 500, "messages": ASK, "tools": [WEATHER]}
    if streamed:
        with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
            message: anthropic.types.Message = stream.get_final_message()
    else:
        message = client.messages.create(**asked)  # type: ignore[call-overload]
    assert message.stop_reason == "tool_use"
    text, *calls = message.content
    assert isinstance(text, anthropic.types.TextBlock) and text.text.strip() == "I look."
    assert len(calls) == 2
    for call in calls:
        assert isinstance(call, anthropic.types.ToolUseBlock)
        assert call.id.startswith("toolu_") and (call.name, call.input) == ("weather", {"city": "Paris"})
    server.engine.script = reply_ids(REPLY)
    results: list[anthropic.types.ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        for call in calls
        if isinstance(call, anthropic.types.ToolUseBlock)
    ]
    answer = client.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=[*ASK, message.to_param(), {"role": "user", "content": results}],
        tools=[WEATHER],
    )
    assert answer.stop_reason == "end_turn"
    assert bytes(token for token in server.last_request().prompt_ids if token < 256).count(b"sunny") == 2


def test_errors_become_the_clients_exceptions(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.role"):
        client.messages.create(model=MODEL, max_tokens=10, messages=[{"role": "robot", "content": "x"}])  # type: ignore[typeddict-item]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=MODEL, max_tokens=10, messages=[{"role": "user", "content": "x" * 70_000}])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=10, messages=ASK)
    server.engine.refuse = QueueFullError("full")
    with pytest.raises(anthropic.APIStatusError) as full:
        client.messages.create(model=MODEL, max_tokens=10, messages=ASK)
    assert full.value.status_code == 529 and full.value.type == "overloaded_error"
    server.engine.refuse = NotReadyError("loading")
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model=MODEL, max_tokens=10, messages=ASK, stream=True)
    server.engine.refuse = None
    server.engine.fail_after = 2
    with pytest.raises(anthropic.APIError), client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as stream:
        stream.until_done()


def test_leaving_a_stream_ends_the_reply(client: anthropic.Anthropic, server: Server) -> None:
    server.engine.script, server.engine.hang = [97], True
    stream = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, stream=True)
    assert next(iter(stream)).type == "message_start"
    stream.close()
    wait_until(lambda: server.engine.cancelled)
