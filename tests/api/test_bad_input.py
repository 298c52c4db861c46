"""Every field, every wrong type: 400 with the field as `param`, nothing reaches the engine, and the server goes on."""

import json
from typing import Any

import pytest

from jaxfold.api.http.known_fields import SUPPORTED
from tests.api.harness import CHAT
from tests.api.harness import COMPLETIONS
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.sse import events

WRONG: dict[str, Any] = {"true": True, "number": 1.5, "text": "x y", "list": [1.5], "object": {"x": 1.5}}
# What is right for a field among the values above.
RIGHT: dict[str, set[str]] = {
    "model": {"text"},
    "stream": {"true"},
    "stream_options": {"object"},
    "temperature": {"number"},
    "presence_penalty": {"number"},
    "frequency_penalty": {"number"},
    "repeat_penalty": {"number"},
    "repetition_penalty": {"number"},
    "stop": {"text"},
    "ignore_eos": {"true"},
    "priority": {"text"},
    "draft": {"true"},
    "cache_salt": {"text"},
    "return_token_ids": {"true"},
    "chat_template_kwargs": {"object"},
    "think": {"true"},
    "enable_thinking": {"true"},
    "parallel_tool_calls": {"true"},
    "add_special_tokens": {"true"},
    "prompt": {"text"},
    "echo": {"true"},
    "logprobs": {"true"},
    "guided_json": {"true"},
    "guided_regex": {"text"},
}
CASES = [
    (path, name, kind)
    for path, route in ((CHAT, "chat"), (COMPLETIONS, "completions"))
    for name in sorted(SUPPORTED[route])  # type: ignore[index]
    for kind in WRONG
    if kind not in RIGHT.get(name, set())
]


def good_body(path: str) -> dict[str, Any]:
    return chat_body() if path == CHAT else {"prompt": "hi"}


@pytest.mark.parametrize(("path", "name", "kind"), CASES, ids=lambda value: str(value).rpartition("/")[2])
def test_every_supported_field_is_checked(server: Server, path: str, name: str, kind: str) -> None:
    stream = CASES.index((path, name, kind)) % 2 == 1
    body = {**good_body(path), "stream": stream, name: WRONG[kind]}
    answer = server.post(path, body)
    assert answer.status == 400, answer.body
    param = answer.error["param"]
    assert param == name or param.startswith((f"{name}[", f"{name}."))
    assert answer.error["type"] == "invalid_request_error"
    assert not server.engine.requests
    server.works()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_null_is_the_same_as_missing(server: Server, path: str) -> None:
    route = "chat" if path == CHAT else "completions"
    nulls = dict.fromkeys(SUPPORTED[route])  # type: ignore[index]
    assert server.post(path, {**nulls, **good_body(path)}).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"chat_template": "{% for i in range(10**9) %}x{% endfor %}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "{{ lipsum }}"}}, "chat_template_kwargs.chat_template"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"images": ["x"]}, "images"),
        ({"store": True}, "store"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
        ({"logit_bias": {"99999999": 5, "AI": -100}}, "logit_bias"),
        ({"logit_bias": {"511": 101}}, "logit_bias"),
        ({"stop": [f"x{i}" for i in range(10_000)] + [""]}, "stop"),
        ({"stop": "x" * 500_000}, "stop"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 10**30}, "messages"),
        ({"seed": 2**64}, "seed"),
        ({"metadata": "x"}, "metadata"),
        ({"user": 1}, "user"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_is_refused_is_named(server: Server, fields: dict[str, Any], param: str, stream: bool) -> None:
    body = chat_body(**fields)
    if "stream_options" not in fields:
        body["stream"] = stream
    answer = server.post(CHAT, body)
    assert answer.status == 400
    assert answer.error["param"] == param
    server.works()


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": False},
        {"logprobs": False, "top_logprobs": None, "n": 1, "response_format": {"type": "text"}, "modalities": ["text"]},
        {"tools": [], "tool_choice": "none"},
        {"tool_choice": "none"},
        {"a_field_of_next_year": [1, 2]},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"seed": -1},
        {"temperature": "0.2", "top_k": 3.0, "max_tokens": "4"},
        {"priority": 3},
    ],
    ids=str,
)
def test_what_asks_for_nothing_is_taken(server: Server, fields: dict[str, Any]) -> None:
    assert server.post(CHAT, chat_body(**fields)).status == 200
    assert events(server, CHAT, chat_body(**fields))[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1, "seed": 2}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        json.dumps(chat_body(tools=[{"name": "f", "parameters": {}}], seed=1))[:-1].encode(),
    ],
    ids=lambda value: value[:24].decode("ascii", "replace"),
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_not_what_they_should_be(server: Server, path: str, body: bytes) -> None:
    answer = server.post(path, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    server.works()


@pytest.mark.parametrize("stream", ["true", "false"])
def test_lone_surrogates_are_refused_before_a_stream_starts(server: Server, stream: str) -> None:
    body = rb'{"stream": %s, "messages": [{"role": "user", "content": "cut emoji \ud83d"}]}' % stream.encode()
    answer = server.post(CHAT, body)
    assert answer.status == 400
    assert answer.error["param"] == "messages[0].content"
    paired = rb'{"messages": [{"role": "user", "content": "emoji \ud83d\ude00"}]}'
    assert server.post(CHAT, paired).status == 200
