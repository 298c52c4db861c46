"""The released openai client against a real server: what people's programs will do."""

import threading
from collections.abc import Iterator

import openai
import pytest

from jaxfold.runtime.api import QueueFullError
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

REPLY = "Hello, w\u00f6rld \U0001f600!"


@pytest.fixture
def server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids(REPLY)), strict_model=True, template=THINKING) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "hi"}], temperature=0, max_tokens=100, seed=1
    )
    assert completion.choices[0].message.content == REPLY
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(reply_ids(REPLY))
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.model_extra is not None
    assert completion.model_extra["jaxfold"]["sampling"] == "greedy"


def test_chat_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == REPLY
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(reply_ids(REPLY))


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=[{"role": "user", "content": "hi"}]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == REPLY


def test_reasoning(client: openai.OpenAI, server: Server) -> None:
    server.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    completion = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    message = completion.choices[0].message
    assert message.content == "Yes."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Hm."


def test_completions(client: openai.OpenAI) -> None:
    for prompt in ("Once", [79, 110], ["a", "b"], [[1], [2, 3]]):
        completion = client.completions.create(model="scripted", prompt=prompt, max_tokens=100)
        assert all(choice.text == REPLY for choice in completion.choices)
    stream = client.completions.create(model="scripted", prompt="Once", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == REPLY


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "jaxfold"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_errors_become_the_clients_exceptions(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}], temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "hi"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="scripted", prompt="x" * 70_000)
    assert long.value.code == "context_length_exceeded"
    server.engine.refuse = QueueFullError("full")
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    assert full.value.response.headers["retry-after"] == "1"
    server.engine.refuse = None
    server.engine.fail_after = 2
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    server.engine.fail_after = None
    server.engine.ready = False
    with pytest.raises(openai.InternalServerError) as loading:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    assert loading.value.status_code == 503


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI, server: Server) -> None:
    server.engine.fail_after = 3
    received = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}], stream=True
        ):
            received.append(chunk)
    assert received
    assert caught.value.type == "server_error"


def test_closing_a_stream_frees_the_lane(client: openai.OpenAI, server: Server) -> None:
    server.engine.hang, server.engine.script = True, [ord("x")]
    stream = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}], stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    stream.close()
    assert server.engine.wait_idle(TIMEOUT_S)
    assert server.engine.snapshot().cancelled_total == 1


def test_a_client_that_times_out_frees_the_lane(client: openai.OpenAI, server: Server) -> None:
    server.engine.hang, server.engine.script = True, ()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}]
        )
    assert server.engine.wait_idle(TIMEOUT_S)


def test_one_client_from_many_threads(client: openai.OpenAI) -> None:
    texts: list[str | None] = []

    def run() -> None:
        completion = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
        texts.append(completion.choices[0].message.content)

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert texts == [REPLY] * 16
