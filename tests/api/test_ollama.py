"""Ollama's protocol over a real socket: whole replies, lines, options, tools, refusals."""

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.api.ollama.fields import OLLAMA_DEFAULTS
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import SamplingParams
from tests.api.conftest import REPLY
from tests.api.harness import CHAT
from tests.api.harness import CHATML
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Answer
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

NATIVE = "/api/chat/ollama"
ROUTES = (NATIVE, "/api/chat", "/api/generate")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinking() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("<think>\nHm.\n</think>\n\nYes.")), template=THINKING) as server:
        yield server


def ask(path: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": text} if path == "/api/generate" else {"messages": [{"role": "user", "content": text}]}
    return {"model": MODEL, **prompt, **fields}


def whole(server: Server, path: str, **fields: Any) -> dict[str, Any]:
    answer = server.post(path, ask(path, stream=False, **fields))
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json
    return body


def lines(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        raw = response.read()
        assert response.status == 200, raw
        assert response.getheader("Content-Type") == "application/x-ndjson"
        assert raw.endswith(b"\n") and b"\r" not in raw
        return [json.loads(line) for line in raw.decode("ascii").splitlines()]
    finally:
        connection.close()


def refused(answer: Answer, status: int = 400) -> str:
    """The message of a refusal in these routes' shape."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    message: str = answer.json["error"]
    assert message and "\n" not in message and "Traceback" not in message
    return message


def prompt_of(server: Server) -> str:
    return ByteTokenizer().decode(server.last_request().prompt_ids, skip_special=False)


@pytest.mark.parametrize("path", ROUTES)
def test_whole_reply(server: Server, path: str) -> None:
    server.engine.cached_tokens = 5
    body = whole(server, path)
    assert body["model"] == MODEL
    assert TIME.fullmatch(body["created_at"])
    text = body["response"] if path == "/api/generate" else body["message"]["content"]
    assert text == REPLY
    if path != "/api/generate":
        assert body["message"] == {"role": "assistant", "content": REPLY}
    assert body["done"] is True and body["done_reason"] == "stop"
    assert body["prompt_eval_count"] == len(server.last_request().prompt_ids)
    assert body["eval_count"] == len(reply_ids(REPLY))
    for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert isinstance(body[name], int) and body[name] >= 0
    # Nanoseconds: no reply of this engine takes as much as a minute, or less than a microsecond.
    assert 1_000 < body["total_duration"] < 60_000_000_000
    assert body["prompt_cache_hit_tokens"] == 5
    assert body["prompt_cache_hit_ratio"] == pytest.approx(5 / body["prompt_eval_count"], abs=1e-4)
    assert body["jaxfold"]["exactness"] == "A"


@pytest.mark.parametrize("path", ROUTES)
def test_streams_by_default(server: Server, path: str) -> None:
    *pieces, last = lines(server, path, ask(path))
    for piece in pieces:
        assert piece["done"] is False
        assert set(piece) == {"model", "created_at", "done", "response" if path == "/api/generate" else "message"}
    texts = [line["response"] if path == "/api/generate" else line["message"]["content"] for line in [*pieces, last]]
    assert "".join(texts) == REPLY and texts[-1] == ""
    known = whole(server, path)
    assert set(last) == set(known)
    assert last["done"] is True and last["done_reason"] == "stop"
    assert last["eval_count"] == known["eval_count"]
    assert last["jaxfold"]["token_sha"] == known["jaxfold"]["token_sha"]


@pytest.mark.parametrize("model", [None, ""])
def test_a_chat_without_a_model_is_the_pages(server: Server, model: str | None) -> None:
    answer = server.post("/api/chat", {"model": model, "messages": [{"role": "user", "content": "hi"}]})
    assert answer.headers["content-type"] == "text/event-stream"
    assert refused(server.post(NATIVE, {"model": model, "messages": []})) == "model is required"


@pytest.mark.parametrize("name", ["SCRIPTED", "scripted:latest", "other"])
def test_names_of_the_model(server: Server, name: str) -> None:
    assert whole(server, NATIVE, model=name)["model"] == name


@pytest.mark.parametrize("path", [*ROUTES, "/api/show"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_unknown_model_is_404(server: Server, path: str, stream: bool) -> None:
    message = refused(server.post(path, ask(path, model="other:7b", stream=stream)), 404)
    assert "other:7b" in message and MODEL in message


@pytest.mark.parametrize("path", [NATIVE, "/api/generate"])
def test_form_types_are_what_curl_sends(server: Server, path: str) -> None:
    kind = "application/x-www-form-urlencoded"
    body = json.dumps(ask(path, stream=False)).encode()
    assert server.post(path, body, {"Content-Type": kind}).status == 200
    refused(server.post(path, body, {"Content-Type": kind, "Origin": "http://127.0.0.1"}), 415)


def test_options(server: Server) -> None:
    options = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 3, "repeat_penalty": 1.5,
        "repeat_last_n": 12, "presence_penalty": 0.25, "frequency_penalty": -0.5, "num_predict": 4,
        "num_ctx": 4096, "num_batch": 8, "num_gpu": -1, "num_thread": 2, "num_keep": -1, "use_mmap": True, "numa": None,
        "mirostat": 0, "mirostat_tau": 5.0, "penalize_newline": True, "typical_p": 1.0, "an_unknown_one": [],
    }  # fmt: skip
    body = whole(server, NATIVE, options=options)
    assert body["done_reason"] == "length" and body["eval_count"] == 4
    assert server.last_request().sampling == SamplingParams(0.5, 7, 0.5, 0.1, 3, 1.5, 0.25, -0.5, 12)


@pytest.mark.parametrize(("asked", "given"), [(-1, 20000), (0, 20000), (-2, None), (1 << 40, None), (6, 6)])
def test_num_predict(server: Server, asked: int, given: int | None) -> None:
    whole(server, NATIVE, options={"num_predict": asked})
    request = server.last_request()
    room = server.engine.context_length - len(request.prompt_ids)
    assert request.max_tokens == (room if given is None else given)


def test_ollamas_defaults_where_nothing_is_set(server: Server) -> None:
    whole(server, "/api/generate")
    sampling = server.last_request().sampling
    assert {name: getattr(sampling, name) for name in OLLAMA_DEFAULTS} == dict(OLLAMA_DEFAULTS)
    server.works()
    assert server.last_request().sampling == SamplingParams()


def test_a_default_that_was_set_stays() -> None:
    settings = {"default_sampling": SamplingParams(temperature=0.1), "sampling_set": frozenset({"temperature"})}
    with running(ScriptedEngine(reply_ids("ok")), **settings) as server:
        whole(server, NATIVE)
        sampling = server.last_request().sampling
        assert (sampling.temperature, sampling.top_k) == (0.1, 40)


def test_stop(server: Server) -> None:
    for stop in ("w", ["zz", "w"]):
        body = whole(server, NATIVE, options={"stop": stop})
        assert body["message"]["content"] == "Hello, " and body["done_reason"] == "stop"
    assert whole(server, NATIVE, options={"stop": []})["message"]["content"] == REPLY


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_predict": -7}, "num_predict"),
        ({"repeat_last_n": -99}, "repeat_last_n"),
        ({"num_ctx": -5}, "num_ctx"),
        ({"num_ctx": 0}, "num_ctx"),
        ({"num_batch": -1}, "num_batch"),
        ({"num_keep": -2}, "num_keep"),
        ({"num_thread": "many"}, "num_thread"),
        ({"use_mmap": 1}, "use_mmap"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"mirostat": 2}, "mirostat"),
        ({"penalize_newline": False}, "penalize_newline"),
        ({"typical_p": 0.5}, "typical_p"),
        ([], "options"),
    ],
)
@pytest.mark.parametrize("path", [NATIVE, "/api/generate"])
def test_options_that_are_wrong(server: Server, path: str, options: Any, name: str) -> None:
    message = refused(server.post(path, ask(path, options=options)))
    assert name in message and "options" in message
    assert not server.engine.requests


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"stream": "yes"}, "stream"),
        ({"think": "false"}, '"low", "medium", "high", "max"'),
        ({"think": 1}, "think"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": "1" * 64 + "!"}, "keep_alive"),
        ({"format": "xml"}, "format"),
        ({"format": 5}, "format"),
        ({"format": ["json"]}, "format"),
        ({"format": {"type": "banana"}}, "banana"),
        ({"temperature": 0}, "options.temperature"),
        ({"max_tokens": 5}, "options.num_predict"),
        ({"logit_bias": {"1": 5}}, "logit_bias is not a field of this route"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"logprobs": True}, "logprobs"),
        ({"truncate": True}, "truncate"),
        ({"skills": ["pdf"]}, "skills"),
    ],
)
@pytest.mark.parametrize("path", [NATIVE, "/api/generate"])
def test_fields_that_are_wrong(server: Server, path: str, fields: dict[str, Any], word: str) -> None:
    assert word in refused(server.post(path, ask(path, **fields)))
    assert not server.engine.requests


@pytest.mark.parametrize("fields", [
    {"keep_alive": -1}, {"keep_alive": "5m"}, {"keep_alive": "1h30m"}, {"keep_alive": "300"}, {"format": ""},
    {"format": None}, {"think": False}, {"think": None}, {"options": None}, {"tools": []}, {"logprobs": False},
    {"reasoning_effort": "none"}, {"context": []}, {"something_new": 1}, {"temperature": None}, {"stop": []},
])  # fmt: skip
def test_fields_that_ask_for_nothing(server: Server, fields: dict[str, Any]) -> None:
    body = whole(server, NATIVE, **fields)
    assert body["message"] == {"role": "assistant", "content": REPLY}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"messages": None}, "messages is required"),
        ({"messages": "hi"}, "messages must be a list"),
        ({"messages": [5]}, "messages[0] must be an object"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "user", "content": "a", "images": "aGk="}]}, "messages[0].images"),
        ({"messages": [{"role": "tool", "content": "a", "tool_name": 5}]}, "messages[0].tool_name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ],
)
def test_conversations_that_are_wrong(server: Server, fields: dict[str, Any], word: str) -> None:
    assert word in refused(server.post(NATIVE, ask(NATIVE, **fields)))


def test_null_images_are_no_images(server: Server) -> None:
    body = whole(server, NATIVE, messages=[{"role": "user", "content": "hi", "images": None, "tool_calls": None}])
    assert body["message"]["content"] == REPLY


@pytest.mark.parametrize("thoughts", [True, "high"])
def test_thinking(thinking: Server, thoughts: Any) -> None:
    body = whole(thinking, NATIVE, think=thoughts)
    assert body["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
    assert not prompt_of(thinking).endswith("</think>\n\n")
    streamed = lines(thinking, NATIVE, ask(NATIVE, think=thoughts))
    assert "".join(line["message"].get("thinking", "") for line in streamed) == "Hm."
    assert "".join(line["message"]["content"] for line in streamed) == "Yes."
    generated = whole(thinking, "/api/generate", think=thoughts)
    assert (generated["response"], generated["thinking"]) == ("Yes.", "Hm.")


@pytest.mark.parametrize("fields", [{"think": True}, {"think": "high"}, {"reasoning_effort": "low"}])
def test_thinking_on_a_model_that_does_not(fields: dict[str, Any]) -> None:
    with running(ScriptedEngine(), tokenizer=ByteTokenizer(added=())) as server:
        assert refused(server.post(NATIVE, ask(NATIVE, **fields))) == '"scripted" does not support thinking'


@pytest.mark.parametrize("fields", [{}, {"think": False}, {"think": None}, {"reasoning_effort": "none"}])
def test_no_thinking_unless_asked_for(thinking: Server, fields: dict[str, Any]) -> None:
    whole(thinking, NATIVE, **fields)
    assert prompt_of(thinking).endswith("<think>\n\n</think>\n\n")


def test_generate_with_system_and_raw(server: Server) -> None:
    whole(server, "/api/generate", system="Be kind.")
    expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant"
    assert prompt_of(server) == expected
    whole(server, "/api/generate", raw=True)
    assert prompt_of(server) == "hi"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"suffix": "end"}, "does not support insert"),
        ({"context": [1, 2]}, "context"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"images": ["aGk="]}, "images"),
        ({"prompt": ["a"]}, "prompt"),
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "think": True}, "think"),
        ({"raw": "yes"}, "raw"),
        ({"width": 64}, "width"),
    ],
)
def test_generate_fields_that_are_wrong(server: Server, fields: dict[str, Any], word: str) -> None:
    assert word in refused(server.post("/api/generate", ask("/api/generate", **fields)))


@pytest.mark.parametrize(("path", "fields"), [
    ("/api/generate", {"prompt": ""}), ("/api/generate", {"prompt": None}), (NATIVE, {"messages": []}),
])  # fmt: skip
def test_a_request_that_only_loads(server: Server, path: str, fields: dict[str, Any]) -> None:
    answer = server.post(path, {"model": MODEL, "keep_alive": 0, **fields})
    assert answer.json["done"] is True and answer.json["done_reason"] == "load"
    assert not server.engine.requests


def test_tool_calls_whole_and_streamed() -> None:
    with running(ScriptedEngine(reply_ids(f"Let me see. {CALL}")), template=CHATML) as server:
        body = whole(server, NATIVE, tools=[ADD])
        assert "<tool_call>" not in body["message"]["content"]
        (call,) = body["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": {"a": 4}}
        assert body["done_reason"] == "tool_calls"
        *pieces, last = lines(server, NATIVE, ask(NATIVE, tools=[ADD]))
        (with_call,) = [piece for piece in pieces if "tool_calls" in piece["message"]]
        assert with_call["done"] is False
        assert with_call["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 4}}
        assert last["done_reason"] == "tool_calls" and "tool_calls" not in last["message"]


@pytest.mark.parametrize("arguments", [{"a": 2}, '{"a": 2}'])
def test_tool_calls_in_the_history(server: Server, arguments: Any) -> None:
    messages = [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]},
        {"role": "tool", "tool_name": "add", "content": "5"},
        {"role": "user", "content": "and now?"},
    ]
    whole(server, NATIVE, messages=messages, tools=[ADD])
    assert '"arguments": {"a": 2}' in prompt_of(server)


def test_calls_and_results_are_paired() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}({% for c in m.tool_calls %}{{ c.id }},{% endfor %}"
        "{{ m.tool_call_id }}){% endfor %}"
    )
    one, two = ({"function": {"name": name, "arguments": {}}} for name in ("one", "two"))
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [one, two]},
        {"role": "tool", "tool_name": "two", "content": "2"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "tool_calls": [{"id": "mine", **one}]},
        {"role": "tool", "tool_call_id": "mine", "content": "1"},
    ]
    with running(ScriptedEngine(reply_ids("ok")), template=template) as server:
        whole(server, NATIVE, messages=messages)
        rest = "tool(call_2)tool(call_1)assistant(mine,)tool(mine)"
        assert prompt_of(server) == f"user()assistant(call_1,call_2,){rest}"


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_503(server: Server, stream: bool) -> None:
    server.engine.refuse = QueueFullError("the queue is full", retry_after=3)
    answer = server.post(NATIVE, ask(NATIVE, stream=stream))
    assert refused(answer, 503) == "the queue is full"
    assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize("path", [NATIVE, "/api/generate"])
def test_a_failure_while_generating(server: Server, path: str) -> None:
    server.engine.fail_after = 2
    *_, last = lines(server, path, ask(path))
    assert last["done"] is True and last["done_reason"] == "error" and last["error"]
    refused(server.post(path, ask(path, stream=False)), 500)


@pytest.mark.parametrize("path", [NATIVE, "/api/generate"])
def test_a_prompt_that_does_not_fit(path: str) -> None:
    with running(ScriptedEngine(reply_ids("ok"), context_length=64)) as server:
        for stream in (True, False):
            assert "context length" in refused(server.post(path, ask(path, "x" * 100, stream=stream)))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": "scripted", "model": "x"}', b"\xff", b'{"a": NaN}'])
@pytest.mark.parametrize("path", [*ROUTES, "/api/show"])
def test_bodies_that_are_no_object(server: Server, path: str, body: bytes) -> None:
    refused(server.post(path, body))


def test_unknown_paths_and_methods(server: Server) -> None:
    assert "/api/nothing" in refused(server.get("/api/nothing"), 404)
    answer = server.get("/api/generate")
    refused(answer, 405)
    assert "POST" in answer.headers["allow"]


def test_a_client_that_leaves_ends_its_reply() -> None:
    engine = ScriptedEngine(iter(lambda: 65, 0), delay_s=0.01)
    with running(engine) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
        connection.request("POST", NATIVE, json.dumps(ask(NATIVE)))
        assert connection.getresponse().readline()
        connection.close()
        assert engine.wait_idle()
        assert engine.cancelled


def test_the_openai_routes_are_untouched(server: Server) -> None:
    assert server.post("/api/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}).status == 200
    assert server.post(CHAT, {"messages": []}).error["param"] == "messages"


def test_a_raw_prompt_starts_once() -> None:
    tokenizer = ByteTokenizer(add_bos=True)
    with running(ScriptedEngine(reply_ids("ok")), tokenizer=tokenizer) as server:
        for prompt in ("hi", "<s>hi"):
            whole(server, "/api/generate", prompt=prompt, raw=True)
            assert prompt_of(server) == "<s>hi"
