"""Log-probabilities over HTTP: one entry a token, whole and streamed alike, beside stops, tools and reasoning."""

from typing import Any

import pytest

from jaxfold.runtime.api import MAX_LOGPROBS
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import COMPLETIONS
from tests.api.harness import END_ID
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.sse import events
from tests.scripted_engine import ScriptedEngine
from tests.scripted_engine import score

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def entry(token: int) -> dict[str, Any]:
    return {
        "token": bytes([token]).decode(errors="replace"),
        "logprob": score(token, 0).logprob,
        "bytes": [token],
    }


def content(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a chat, which must be the same whole and streamed."""
    whole = server.post(CHAT, body).json["choices"][0]["logprobs"]["content"]
    streamed = []
    for chunk in events(server, CHAT, body):
        for choice in chunk["choices"]:
            streamed += (choice.get("logprobs") or {}).get("content", [])
    assert streamed == whole
    return list(whole)


def test_a_chat_has_one_entry_for_each_visible_token(server: Server) -> None:
    found = content(server, chat_body(logprobs=True))
    assert found == [entry(token) | {"top_logprobs": []} for token in REPLY.encode()]
    assert server.last_request().logprobs == 0


def test_the_likeliest_tokens(server: Server) -> None:
    found = content(server, chat_body(logprobs=True, top_logprobs=2))
    for token, one in zip(REPLY.encode(), found, strict=True):
        assert one == entry(token) | {"top_logprobs": [entry(token + 1) | {"logprob": -0.25}, entry(token)]}
    assert len(content(server, chat_body(logprobs=True, top_logprobs=MAX_LOGPROBS))[0]["top_logprobs"]) == MAX_LOGPROBS


def test_half_characters_keep_their_bytes(server: Server) -> None:
    server.engine.script = reply_ids("h\u00e9!")
    found = content(server, chat_body(logprobs=True))
    assert b"".join(bytes(one["bytes"]) for one in found).decode() == "h\u00e9!"


@pytest.mark.parametrize("stop", ["y", "Hell", "\u00e9"])
def test_tokens_of_a_stop_string_have_none(server: Server, stop: str) -> None:
    server.engine.script = reply_ids("Hello, caf\u00e9 and anyone")
    body = chat_body(logprobs=True, stop=stop)
    text = server.post(CHAT, body).json["choices"][0]["message"]["content"]
    assert bytes(value for one in content(server, body) for value in one["bytes"]).decode() == text


def test_reasoning_and_calls_are_scored_too() -> None:
    text = 'Because.</think>Well <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    with running(ScriptedEngine(reply_ids("<think>" + text)), template=THINKING) as server:
        found = content(server, chat_body(logprobs=True, tools=[TOOL]))
    joined = bytes(value for one in found for value in one["bytes"]).decode()
    assert joined.startswith("<think>Because.</think>Well") and "arguments" in joined


def test_without_the_field_there_are_none(server: Server) -> None:
    assert server.post(CHAT, chat_body(logprobs=False)).json["choices"][0]["logprobs"] is None
    assert server.last_request().logprobs is None
    assert server.post(COMPLETIONS, {"prompt": "x", "logprobs": False}).json["choices"][0]["logprobs"] is None
    assert all("logprobs" not in choice for chunk in events(server, CHAT, chat_body()) for choice in chunk["choices"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": "true"}, "logprobs"),
    ],
    ids=str,
)
def test_chat_fields_that_are_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post(CHAT, chat_body(**fields))
    assert (answer.status, answer.error["param"]) == (400, param)
    assert not server.engine.requests


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": "yes"}, "echo"),
    ],
    ids=str,
)
def test_completion_fields_that_are_refused(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post(COMPLETIONS, {"prompt": "x", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)


def joined(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """A completion's choice, which must be the same whole and streamed."""
    whole: dict[str, Any] = server.post(COMPLETIONS, body).json["choices"][0]
    lists: dict[str, list[Any]] = {}
    text = ""
    for chunk in events(server, COMPLETIONS, body):
        (choice,) = chunk["choices"]
        text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            lists.setdefault(name, []).extend(values)
    assert text == whole["text"] and (lists or None) == whole["logprobs"]
    return whole


def test_the_prompt_alone_is_scored(server: Server) -> None:
    body = {"prompt": "The quick", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    answer = server.post(COMPLETIONS, body).json
    assert answer["usage"]["completion_tokens"] == 0
    request = server.last_request()
    assert (request.max_tokens, request.score_prompt, request.logprobs) == (0, True, 1)
    choice = joined(server, body)
    assert (choice["text"], choice["finish_reason"]) == ("The quick", "length")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list("The quick")
    assert logprobs["text_offset"] == list(range(9))
    assert logprobs["token_logprobs"] == [None, *(score(ord(char), 0).logprob for char in "he quick")]
    first, second, *_ = logprobs["top_logprobs"]
    assert first is None and second == {"i": -0.25, "h": score(ord("h"), 0).logprob}


def test_echo_before_a_reply(server: Server) -> None:
    choice = joined(server, {"prompt": "Caf\u00e9: ", "echo": True, "logprobs": 0})
    assert choice["text"] == "Caf\u00e9: " + REPLY
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    # The end token has a score and no text, as every token that was drawn.
    assert logprobs["token_logprobs"][-1] == score(END_ID, 0).logprob and logprobs["tokens"][-1] == ""
    assert all(len(top) == 1 for top in logprobs["top_logprobs"][1:])
    offsets = logprobs["text_offset"]
    assert [choice["text"][at:][: len(token)] for at, token in zip(offsets, logprobs["tokens"], strict=True)] == (
        logprobs["tokens"]
    )


def test_echo_without_scores(server: Server) -> None:
    assert joined(server, {"prompt": "Once", "echo": True})["text"] == "Once" + REPLY
    assert not server.last_request().score_prompt
    assert joined(server, {"prompt": "Once", "echo": True, "max_tokens": 0})["text"] == "Once"


def test_control_tokens_of_the_prompt_are_echoed(server: Server) -> None:
    assert joined(server, {"prompt": "<|im_start|>x", "echo": True, "max_tokens": 0})["text"] == "<|im_start|>x"


def test_zero_tokens_without_echo_are_the_default(server: Server) -> None:
    assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 0}).json["choices"][0]["text"] == REPLY


def test_what_evaluation_harnesses_send(server: Server) -> None:
    """Prompts as lists of ids, one generated token which they drop, scores of the rest."""
    prompts = [list(b"One two"), list(b"Three")]
    body = {
        "model": "x",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    server.engine.script = [END_ID]
    for ids, choice in zip(prompts, server.post(COMPLETIONS, body).json["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][1:-1] == [score(token, 0).logprob for token in ids[1:]]
        for token, top in zip(logprobs["tokens"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
            assert token in top and max(top, key=lambda key: top[key]) != token
