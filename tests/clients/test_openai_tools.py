"""Tools with the released openai client: calls whole and streamed, a whole round trip, what its helpers parse."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

CALL = (
    "<think>\nI need the weather.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Oslo", "days": 1}}\n</tool_call>'
)


class GetWeather(BaseModel):
    """Current weather for a city."""

    city: str
    days: int


TOOL: Any = openai.pydantic_function_tool(GetWeather)
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather?"}]


@pytest.fixture
def server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(CALL)), template=THINKING) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_calls(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(model="scripted", messages=ASKED, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "I need the weather."
    assert choice.message.tool_calls is not None
    calls = [call for call in choice.message.tool_calls if call.type == "function"]
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris", "Oslo"]
    assert len({call.id for call in calls}) == 2


def test_calls_are_parsed_into_models(client: openai.OpenAI) -> None:
    message = client.chat.completions.parse(model="scripted", messages=ASKED, tools=[TOOL]).choices[0].message
    assert message.tool_calls is not None
    parsed = [call.function.parsed_arguments for call in message.tool_calls]
    assert parsed == [GetWeather(city="Paris", days=3), GetWeather(city="Oslo", days=1)]


def test_streamed_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=ASKED, tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert [call.function.parsed_arguments for call in final.message.tool_calls] == [
        GetWeather(city="Paris", days=3),
        GetWeather(city="Oslo", days=1),
    ]


def test_a_round_trip(client: openai.OpenAI, server: Server) -> None:
    message = client.chat.completions.create(model="scripted", messages=ASKED, tools=[TOOL]).choices[0].message
    assert message.tool_calls is not None
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f"sunny {at}"}
        for at, call in enumerate(message.tool_calls)
    ]
    server.engine.script = reply_ids("Sunny in both.")
    answered: list[Any] = [*ASKED, message, *results]
    final = client.chat.completions.create(model="scripted", messages=answered, tools=[TOOL]).choices[0]
    assert (final.message.content, final.message.tool_calls, final.finish_reason) == ("Sunny in both.", None, "stop")
    prompt = bytes(id_ for id_ in server.last_request().prompt_ids if id_ < 256).decode()
    assert "Oslo" in prompt and "sunny 0" in prompt and "sunny 1" in prompt


def test_a_forced_call(client: openai.OpenAI, server: Server) -> None:
    server.engine.script = reply_ids("I would rather talk.")
    choice = client.chat.completions.create(
        model="scripted", messages=ASKED, tools=[TOOL], tool_choice="required"
    ).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls


def test_refusals_name_the_field(client: openai.OpenAI) -> None:
    nobody: Any = {"type": "function", "function": {"name": "nobody"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="scripted", messages=ASKED, tools=[TOOL], tool_choice=nobody)
    assert caught.value.param == "tool_choice"
