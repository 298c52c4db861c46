"""Chat completions over a real socket: whole and streamed replies, byte by byte."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.runtime.api import token_sha
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import END_ID
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.sse import events
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

THINK_END = ByteTokenizer().special_tokens["</think>"]
CHAT_WITHOUT_TOOLS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TIMES = {"queue_s", "prefill_s", "decode_s", "time_to_first_token", "tokens_per_second"}


@pytest.fixture(scope="module")
def thinking_server() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("ok")), template=THINKING) as server:
        yield server


def text_of(chunks: list[dict[str, Any]], field: str = "content") -> str:
    return "".join(choice["delta"].get(field, "") for chunk in chunks for choice in chunk["choices"])


def without_times(block: dict[str, Any]) -> dict[str, Any]:
    assert block.keys() >= TIMES
    return {name: value for name, value in block.items() if name not in TIMES | {"rounds"}}


def test_whole_reply(server: Server) -> None:
    answer = server.post(CHAT, chat_body(model=MODEL))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == MODEL
    message = {"role": "assistant", "content": REPLY}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    count, prompt = len(reply_ids(REPLY)), server.last_request().prompt_ids
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": count,
        "total_tokens": len(prompt) + count,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    stats = body["jaxfold"]
    assert stats["token_sha"] == token_sha(reply_ids(REPLY))
    assert stats["exactness"] == "A"
    assert stats["sampling"] == "exact"
    assert "token_ids" not in stats


def test_stream_grammar(server: Server) -> None:
    whole = server.post(CHAT, chat_body()).json
    chunks = events(server, CHAT, chat_body())
    first, *middle, last = chunks
    for chunk in chunks:
        assert chunk["id"] == first["id"] and chunk["id"].startswith("chatcmpl-")
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["created"] == first["created"]
        assert chunk["model"] == MODEL
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]
    for chunk in middle:
        assert set(chunk) == {"id", "object", "created", "model", "choices"}
        (choice,) = chunk["choices"]
        assert set(choice) == {"index", "delta", "finish_reason"}
        assert set(choice["delta"]) == {"content"} and choice["delta"]["content"]
        assert choice["finish_reason"] is None
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert text_of(chunks) == REPLY
    assert last["usage"] == whole["usage"]
    assert without_times(last["jaxfold"]) == without_times(whole["jaxfold"])


def test_include_usage(server: Server) -> None:
    whole = server.post(CHAT, chat_body()).json
    chunks = events(server, CHAT, chat_body(stream_options={"include_usage": True}))
    *others, last = chunks
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in others)
    assert others[-1]["choices"][0]["finish_reason"] == "stop"
    assert "jaxfold" in others[-1]


@pytest.mark.parametrize("include", [True, False])
def test_continuous_usage(server: Server, include: bool) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    chunks = events(server, CHAT, chat_body(stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == len(reply_ids(REPLY))
    for chunk in chunks:
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (chunks[-1]["choices"] == []) is include


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": None}, None, {"unknown": 1}])
def test_stream_options_that_ask_for_nothing(server: Server, options: Any) -> None:
    chunks = events(server, CHAT, chat_body(stream_options=options))
    assert [("usage" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_token_ids_on_request(server: Server) -> None:
    body = chat_body(return_token_ids=True)
    assert server.post(CHAT, body).json["jaxfold"]["token_ids"] == reply_ids(REPLY)
    assert events(server, CHAT, body)[-1]["jaxfold"]["token_ids"] == reply_ids(REPLY)


@pytest.mark.parametrize(
    "path",
    ["/chat/completions", "/openai/v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completions?beta=true",
     "//v1/chat/completions", "/a/b/c/v1/chat/completions"],
)  # fmt: skip
def test_paths_are_matched_by_their_end(server: Server, path: str) -> None:
    assert server.post(path, chat_body()).json["object"] == "chat.completion"


@pytest.mark.parametrize(("asked", "named"), [(MODEL, MODEL), ("other", "other"), ("gpt-4", MODEL), (None, MODEL)])
def test_model_names(server: Server, asked: str | None, named: str) -> None:
    assert server.post(CHAT, chat_body(model=asked)).json["model"] == named
    assert {chunk["model"] for chunk in events(server, CHAT, chat_body(model=asked))} == {named}


def test_stop_string_is_cut_off_and_counted(server: Server) -> None:
    body = server.post(CHAT, chat_body(stop=["w\u00f6"])).json
    assert body["choices"][0]["message"]["content"] == "Hello, "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(b"Hello, w\xc3\xb6")
    chunks = events(server, CHAT, chat_body(stop=["w\u00f6"]))
    assert text_of(chunks) == "Hello, "
    assert chunks[-1]["usage"] == body["usage"]


def test_length_and_empty_replies(server: Server) -> None:
    body = server.post(CHAT, chat_body(max_tokens=3)).json
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "Hel"
    server.engine.script = [END_ID]
    body = server.post(CHAT, chat_body()).json
    assert body["choices"][0]["message"]["content"] == ""
    assert body["usage"]["completion_tokens"] == 1
    chunks = events(server, CHAT, chat_body())
    assert len(chunks) == 2
    assert chunks[-1]["jaxfold"]["tokens_per_second"] is None


def test_fields_reach_the_engine(server: Server) -> None:
    server.post(
        CHAT,
        chat_body(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=11, presence_penalty=0.1, frequency_penalty=0.2,
            repeat_penalty=1.1, repeat_last_n=64, logit_bias={"3": -5}, max_completion_tokens=2, ignore_eos=True,
            draft=False, cache_salt="mine", priority="background",
        ),
    )  # fmt: skip
    request = server.last_request()
    asked = request.sampling
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed) == (0.5, 0.9, 7, 0.1, 11)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.repeat_penalty) == (0.1, 0.2, 1.1)
    assert (asked.penalty_last_n, asked.logit_bias) == (64, ((3, -5.0),))
    assert (request.max_tokens, request.stop_ids, request.draft) == (2, frozenset(), False)
    assert (request.cache_salt, request.background) == ("mine", True)


def test_a_plain_request_takes_the_defaults(server: Server) -> None:
    server.post(CHAT, chat_body())
    request = server.last_request()
    assert request.sampling == server.state.settings.default_sampling
    assert (request.stop_ids, request.draft, request.background) == (frozenset({END_ID}), True, False)
    assert request.max_tokens == 20000
    assert bytes(id_ for id_ in request.prompt_ids if id_ < 256).decode().startswith("user\nhi")


def test_title_requests_run_in_the_background(server: Server) -> None:
    system = {"role": "system", "content": "Write a title for this session."}
    server.post(CHAT, {"messages": [system, {"role": "user", "content": "hi"}]})
    assert server.last_request().background


def test_greedy_is_named(server: Server) -> None:
    assert server.post(CHAT, chat_body(temperature=0)).json["jaxfold"]["sampling"] == "greedy"


def test_history_with_calls_is_rendered(server: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "secret", "arguments": '{"cut": "'}}
    messages = [
        {"role": "user", "content": "Secret number?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}],
        },
    ]
    tools = [{"type": "function", "function": {"name": "secret", "parameters": {}}}]
    assert server.post(CHAT, {"messages": messages, "tools": tools}).status == 200
    prompt = bytes(id_ for id_ in server.last_request().prompt_ids if id_ < 256).decode()
    assert "_raw" in prompt and "42" in prompt and "None" not in prompt


def test_tools_that_the_template_cannot_show_are_reported() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with running(ScriptedEngine(reply_ids("ok")), template=CHAT_WITHOUT_TOOLS) as server:
        assert server.post(CHAT, chat_body(tools=tools)).json["jaxfold"]["warnings"]
        assert "warnings" not in server.post(CHAT, chat_body(tools=tools, tool_choice="none")).json["jaxfold"]
        assert "warnings" not in server.post(CHAT, chat_body()).json["jaxfold"]


def test_reasoning_is_told_apart() -> None:
    script = reply_ids("<think>\nTwo and two.\n</think>\n\nFour.")
    with running(ScriptedEngine(script), template=THINKING) as server:
        body = server.post(CHAT, chat_body()).json
        message = body["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
        assert 0 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] < body["usage"]["completion_tokens"]
        chunks = events(server, CHAT, chat_body())
        assert text_of(chunks) == "Four."
        assert text_of(chunks, "reasoning_content").strip() == "Two and two."
        assert chunks[-1]["usage"] == body["usage"]


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"think": True}, True),
        ({"enable_thinking": True}, True),
        ({"reasoning_effort": "low"}, True),
        ({"chat_template_kwargs": {"thinking": {"type": "enabled"}}}, True),
        ({"think": False}, False),
        ({"enable_thinking": False}, False),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": {"type": "disabled"}}}, False),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, False),
        ({"reasoning_effort": "high", "think": False}, False),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "none"}}, True),
    ],
    ids=str,
)
def test_switches_for_thinking(thinking_server: Server, fields: dict[str, Any], thinks: bool) -> None:
    sent = copy.deepcopy(fields)
    assert thinking_server.post(CHAT, chat_body(**sent)).status == 200
    assert (THINK_END not in thinking_server.last_request().prompt_ids) is thinks


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"think": "yes"}, "think"),
        ({"think": 1}, "think"),
        ({"enable_thinking": "true"}, "enable_thinking"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"think": True, "enable_thinking": False}, "think"),
        ({"think": True, "chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": {"type": "sometimes"}}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": {"type": []}}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"reasoning_effort": "extreme"}}, "chat_template_kwargs.reasoning_effort"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_switches_that_are_refused(thinking_server: Server, fields: dict[str, Any], param: str) -> None:
    answer = thinking_server.post(CHAT, chat_body(**fields))
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"think": False}, 200),
        ({"reasoning_effort": "none"}, 200),
        ({"think": True}, 400),
        ({"reasoning_effort": "high"}, 400),
        ({"chat_template_kwargs": {"enable_thinking": True}}, 400),
    ],
    ids=str,
)
def test_a_model_that_does_not_reason(fields: dict[str, Any], status: int) -> None:
    with running(ScriptedEngine(reply_ids("ok")), tokenizer=ByteTokenizer(added=())) as server:
        assert server.post(CHAT, chat_body(**fields)).status == status


def test_effort_levels_reach_a_template_that_names_them() -> None:
    template = (
        THINKING + "{% if reasoning_effort == 'low' or reasoning_effort == 'max' %}{{ reasoning_effort }}{% endif %}"
    )
    with running(ScriptedEngine(reply_ids("ok")), template=template) as server:
        for asked, named in (("minimal", b"low"), ("xhigh", b"max"), ("low", b"low")):
            assert server.post(CHAT, chat_body(reasoning_effort=asked)).status == 200
            assert bytes(id_ for id_ in server.last_request().prompt_ids if id_ < 256).endswith(named)
