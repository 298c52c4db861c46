"""The released ollama client and LangChain's ChatOllama against a real server: what people's programs will do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ollama
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages import HumanMessage
from langchain_core.messages import SystemMessage
from langchain_core.messages import ToolMessage
from langchain_ollama import ChatOllama
from langchain_ollama import OllamaLLM

from jaxfold.runtime.api import QueueFullError
from tests.api.harness import END_ID
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, w\u00f6rld \U0001f600!"


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: the first one
        b: the second one
    """
    return a + b


@pytest.fixture
def server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(REPLY)), template=THINKING) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, timeout=TIMEOUT_S) as client:
        yield client


def prompt_of(server: Server) -> str:
    return ByteTokenizer().decode(server.last_request().prompt_ids, skip_special=False)


def test_chat(client: ollama.Client, server: Server) -> None:
    reply = client.chat(MODEL, [{"role": "user", "content": "hi"}], options={"temperature": 0, "seed": 1})
    assert reply.message.content == REPLY
    assert reply.message.thinking is None
    assert reply.done and reply.done_reason == "stop"
    assert reply.eval_count == len(reply_ids(REPLY))
    assert reply.total_duration is not None and reply.total_duration > 0
    assert server.last_request().sampling.temperature == 0


def test_chat_stream(client: ollama.Client) -> None:
    parts = list(client.chat(MODEL, [{"role": "user", "content": "hi"}], stream=True))
    assert "".join(part.message.content or "" for part in parts) == REPLY
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_thinking(client: ollama.Client, server: Server) -> None:
    server.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    reply = client.chat(MODEL, [{"role": "user", "content": "hi"}], think="high")
    assert (reply.message.thinking, reply.message.content) == ("Hm.", "Yes.")


def test_generate(client: ollama.Client) -> None:
    assert client.generate(MODEL, "hi", system="Be kind.").response == REPLY
    assert "".join(part.response or "" for part in client.generate(MODEL, "hi", raw=True, stream=True)) == REPLY


def test_models(client: ollama.Client, server: Server) -> None:
    (listed,) = client.list().models
    assert listed.model == MODEL
    (running_now,) = client.ps().models
    assert running_now.name == MODEL and running_now.context_length == server.engine.context_length
    shown = client.show(MODEL)
    assert shown.capabilities is not None and "thinking" in shown.capabilities
    assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "scripted"


def test_refusals(client: ollama.Client, server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="not hosted") as unknown:
        client.chat("other", [{"role": "user", "content": "hi"}])
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="temperature"):
        list(client.chat(MODEL, [{"role": "user", "content": "hi"}], options={"temperature": -1}, stream=True))
    with pytest.raises(ollama.ResponseError, match="allow-pull"):
        client.pull("evil.example/library/x", insecure=True)
    server.engine.refuse = QueueFullError("the queue is full")
    with pytest.raises(ollama.ResponseError, match="queue is full") as full:
        client.generate(MODEL, "hi")
    assert full.value.status_code == 503


def test_a_failure_in_a_stream(client: ollama.Client, server: Server) -> None:
    server.engine.fail_after = 2
    with pytest.raises(ollama.ResponseError, match="internal error"):
        list(client.chat(MODEL, [{"role": "user", "content": "hi"}], stream=True))


def test_tools_in_the_history(client: ollama.Client, server: Server) -> None:
    messages = [
        {"role": "user", "content": "2+3?"},
        ollama.Message(
            role="assistant",
            tool_calls=[
                ollama.Message.ToolCall(
                    function=ollama.Message.ToolCall.Function(name="add", arguments={"a": 2, "b": 3})
                )
            ],
        ),
        {"role": "tool", "tool_name": "add", "content": "5"},
    ]
    assert client.chat(MODEL, messages, tools=[add]).message.content == REPLY
    prompt = prompt_of(server)
    assert '"arguments": {"a": 2, "b": 3}' in prompt and "Add two integers." in prompt


@contextmanager
def langchain[T: (ChatOllama, OllamaLLM)](kind: type[T], server: Server, **fields: Any) -> Iterator[T]:
    """A model of LangChain's, which leaves it to the collector to close its client."""
    model = kind(model=MODEL, base_url=server.url, **fields)
    try:
        yield model
    finally:
        model._client.close()


def test_formats(client: ollama.Client, server: Server) -> None:
    server.engine.script = [*b"Well, ", *b'"' * 30, *([END_ID] * 99)]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    question = [{"role": "user", "content": "hi"}]
    for form in ("json", schema):
        assert isinstance(json.loads(client.chat(MODEL, question, format=form).message.content or ""), dict)  # type: ignore[call-overload]
        assert isinstance(json.loads(client.generate(MODEL, "hi", format=form).response), dict)  # type: ignore[call-overload]
    with langchain(ChatOllama, server) as llm:
        assert set(llm.with_structured_output(schema, method="json_schema").invoke("hi")) == {"a"}


def test_langchain_chat(server: Server) -> None:
    with langchain(ChatOllama, server, temperature=0, num_predict=64, num_ctx=4096, validate_model_on_init=True) as llm:
        message = llm.invoke([SystemMessage("Be kind."), HumanMessage("hi")])
        assert message.content == REPLY
        assert message.usage_metadata is not None
        assert message.usage_metadata["output_tokens"] == len(reply_ids(REPLY))
        assert message.response_metadata["done_reason"] == "stop"
        assert server.last_request().max_tokens == 64
        assert "".join(str(chunk.content) for chunk in llm.stream("hi")) == REPLY


def test_langchain_reasoning(server: Server) -> None:
    server.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    with langchain(ChatOllama, server, reasoning=True) as llm:
        message = llm.invoke("hi")
    assert message.content == "Yes."
    assert message.additional_kwargs["reasoning_content"] == "Hm."


def test_langchain_tools_in_the_history(server: Server) -> None:
    call = {"name": "add", "args": {"a": 2, "b": 3}, "id": "one"}
    history = [HumanMessage("2+3?"), AIMessage("", tool_calls=[call]), ToolMessage("5", tool_call_id="one")]
    with langchain(ChatOllama, server) as llm:
        assert llm.bind_tools([add]).invoke(history).content == REPLY
    assert '"arguments": {"a": 2, "b": 3}' in prompt_of(server)


def test_langchain_completion(server: Server) -> None:
    with langchain(OllamaLLM, server) as llm:
        assert llm.invoke("hi") == REPLY


def test_tool_calls(client: ollama.Client, server: Server) -> None:
    server.engine.script = reply_ids('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>')
    question = [{"role": "user", "content": "2+3?"}]
    parts = [client.chat(MODEL, question, tools=[add]), *client.chat(MODEL, question, tools=[add], stream=True)]
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert [(call.name, dict(call.arguments)) for call in calls] == [("add", {"a": 2, "b": 3})] * 2
    with langchain(ChatOllama, server) as llm:
        (called,) = llm.bind_tools([add]).invoke("2+3?").tool_calls
    assert (called["name"], called["args"]) == ("add", {"a": 2, "b": 3})
