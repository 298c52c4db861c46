"""Raw completions over a real socket: every form of prompt, one choice for each."""

import json
from typing import Any

import pytest

from jaxfold.api.openai.completions import MAX_PROMPTS
from jaxfold.runtime.api import EngineRequest
from tests.api.conftest import REPLY
from tests.api.harness import COMPLETIONS
from tests.api.harness import MODEL
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.sse import events
from tests.scripted_engine import ScriptedEngine


def echoing(request: EngineRequest) -> list[int]:
    """A reply that tells which prompt it belongs to."""
    return [*request.prompt_ids, *reply_ids(":end")]


def test_whole_reply(server: Server) -> None:
    body = server.post(COMPLETIONS, {"prompt": "Once", "model": MODEL, "temperature": 0}).json
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == MODEL
    assert body["choices"] == [{"index": 0, "text": REPLY, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 4
    assert body["jaxfold"]["sampling"] == "greedy"
    assert server.last_request().prompt_ids == tuple(b"Once")


def test_stream_grammar(server: Server) -> None:
    whole = server.post(COMPLETIONS, {"prompt": "Once"}).json
    *pieces, last = events(server, COMPLETIONS, {"prompt": "Once"})
    for chunk in pieces:
        assert set(chunk) == {"id", "object", "created", "model", "choices"}
        assert chunk["object"] == "text_completion"
        (choice,) = chunk["choices"]
        assert choice == {"index": 0, "text": choice["text"], "logprobs": None, "finish_reason": None}
    assert "".join(chunk["choices"][0]["text"] for chunk in pieces) == REPLY
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert last["usage"] == whole["usage"]
    assert last["jaxfold"]["token_sha"] == whole["jaxfold"]["token_sha"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", ["abc"]),
        (["abc"], ["abc"]),
        (["abc", "d"], ["abc", "d"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
        (["same", "same"], ["same", "same"]),
    ],
    ids=str,
)
def test_forms_of_prompt(server: Server, prompt: Any, expected: list[str]) -> None:
    server.engine.script = echoing
    body = server.post(COMPLETIONS, {"prompt": prompt}).json
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert [choice["text"] for choice in body["choices"]] == [f"{text}:end" for text in expected]
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert body["usage"]["completion_tokens"] == sum(len(text) + 5 for text in expected)
    assert ("jaxfold" in body) is (len(expected) == 1)
    if len(expected) > 1:
        assert all("token_sha" in choice["jaxfold"] for choice in body["choices"])


def test_a_call_with_more_prompts_than_the_queue_holds_is_served_whole() -> None:
    engine = ScriptedEngine(echoing, lanes=2, max_queue=3)
    prompts = [f"prompt {index}" for index in range(MAX_PROMPTS)]
    with running(engine) as server:
        body = server.post(COMPLETIONS, {"prompt": prompts}).json
        assert [choice["text"] for choice in body["choices"]] == [f"{prompt}:end" for prompt in prompts]
        too_many = server.post(COMPLETIONS, {"prompt": [*prompts, "one more"]})
        assert too_many.status == 400 and too_many.error["param"] == "prompt"


def test_a_call_that_meets_a_full_queue_starts_nothing() -> None:
    engine = ScriptedEngine(hang=True, lanes=1, max_queue=1)
    with running(engine) as server:
        open_calls = [server.connection() for _ in range(2)]
        for count, connection in enumerate(open_calls, 1):
            connection.request("POST", COMPLETIONS, json.dumps({"prompt": "x"}))
            wait_until(lambda: len(engine.requests) == count)  # noqa: B023
        wait_until(lambda: engine.snapshot().requests_running == 1)
        refused = server.post(COMPLETIONS, {"prompt": ["a", "b", "c"]})
        assert refused.status == 429 and len(engine.requests) == 2
        for connection in open_calls:
            connection.close()
        wait_until(engine.wait_idle)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([1] * (1 << 16), "prompt"),
        ([[1], [1] * (1 << 16)], "prompt[1]"),
        ([1, "a"], "prompt"),
        (["a", 1], "prompt"),
        ([[1], "a"], "prompt"),
        ([{}] * 1000, "prompt"),
    ],
    ids=["too long", "one too long", "id and text", "text and id", "list and text", "objects"],
)
def test_junk_prompts(server: Server, prompt: Any, param: str) -> None:
    answer = server.post(COMPLETIONS, {"prompt": prompt})
    assert answer.status == 400 and answer.error["param"] == param


def test_streamed_choices_interleave_by_index(server: Server) -> None:
    server.engine.script = echoing
    prompts = [f"prompt {index}" for index in range(20)]
    chunks = events(server, COMPLETIONS, {"prompt": prompts})
    texts = [""] * len(prompts)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [f"{prompt}:end" for prompt in prompts]
    finished = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert sorted(chunk["choices"][0]["index"] for chunk in finished) == list(range(len(prompts)))
    assert all("jaxfold" in chunk for chunk in finished)
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["usage"]["completion_tokens"] == sum(len(prompt) + 5 for prompt in prompts)


def test_include_usage_with_many_prompts(server: Server) -> None:
    body = {"prompt": ["a", "b"], "stream_options": {"include_usage": True}}
    *others, last = events(server, COMPLETIONS, body)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2 * len(reply_ids(REPLY))
    assert all(chunk["usage"] is None for chunk in others)


def test_control_tokens_and_special_tokens(server: Server) -> None:
    server.post(COMPLETIONS, {"prompt": "<|im_start|>x"})
    assert server.last_request().prompt_ids == (257, ord("x"))
    server.post(COMPLETIONS, {"prompt": "x", "add_special_tokens": True})
    assert server.last_request().prompt_ids == (ord("x"),)  # this tokenizer adds nothing


@pytest.mark.parametrize("path", ["/completions", "/openai/v1/completions", "/v1/completions/?x=1"])
def test_paths_are_matched_by_their_end(server: Server, path: str) -> None:
    assert server.post(path, {"prompt": "a"}).json["object"] == "text_completion"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ({}, "prompt"),
        (1, "prompt"),
        (True, "prompt"),
        ([True], "prompt"),
        ([1.5], "prompt"),
        (["a", 1], "prompt"),
        (["a", ["b"]], "prompt"),
        ([None], "prompt"),
        ([512], "prompt"),
        ([-1], "prompt"),
        ([10**30], "prompt"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        ([[1], ["a"]], "prompt[1]"),
        ([[1], [512]], "prompt[1]"),
        (["a"] * 129, "prompt"),
        ([[1]] * 129, "prompt"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_prompts_that_are_refused(server: Server, prompt: Any, param: str) -> None:
    answer = server.post(COMPLETIONS, {"prompt": prompt})
    assert answer.status == 400
    assert answer.error["param"] == param
    assert not server.engine.requests


def test_as_many_prompts_as_are_allowed(server: Server) -> None:
    body = server.post(COMPLETIONS, {"prompt": ["a"] * 128, "max_tokens": 1}).json
    assert len(body["choices"]) == 128


def test_a_missing_prompt(server: Server) -> None:
    assert server.post(COMPLETIONS, {}).error["param"] == "prompt"
    assert server.post(COMPLETIONS, {"messages": [{"role": "user", "content": "hi"}]}).error["param"] == "prompt"


def test_context_that_does_not_fit(server: Server) -> None:
    limit = server.engine.context_length
    answer = server.post(COMPLETIONS, {"prompt": "x" * (limit + 100), "max_tokens": 1})
    assert answer.status == 400
    error = answer.error
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"].startswith(f"This server's maximum context length is {limit} tokens")
    assert f"This model's maximum context length is {limit} tokens" in error["message"]
    assert str(limit + 100) in error["message"]
    answer = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": limit})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
