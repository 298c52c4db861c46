"""Tokenize, detokenize, what the tokenizer says of itself, and embeddings that nobody serves."""

from typing import Any

import pytest

from jaxfold.api.openai.tokenize import MAX_CHARS
from jaxfold.api.openai.tokenize import MAX_TOKENS
from tests.api.harness import CHAT
from tests.api.harness import CHATML
from tests.api.harness import END_ID
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

TOKENIZER = ByteTokenizer()
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "h\u00e9 <|im_end|>"}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize", "/tokenize/"])
def test_a_prompt(server: Server, path: str) -> None:
    answer = server.post(path, {"prompt": "h\u00e9<|im_end|>"})
    assert answer.json == {
        "count": 4,
        "max_model_len": server.engine.context_length,
        "tokens": [*"h\u00e9".encode(), END_ID],
    }


def test_texts_of_tokens(server: Server) -> None:
    body = server.post("/tokenize", {"prompt": "a\u00e9<|im_end|>", "return_token_strs": True}).json
    assert body["token_strs"] == ["a", "\ufffd", "\ufffd", "<|im_end|>"]
    assert "token_strs" not in server.post("/tokenize", {"prompt": "a", "return_token_strs": False}).json


def test_what_the_tokenizer_adds_around_a_prompt() -> None:
    with running(ScriptedEngine(), tokenizer=ByteTokenizer(add_bos=True)) as server:
        bos = TOKENIZER.special_tokens["<s>"]
        for given, ids in (("absent", [bos, 97]), (True, [bos, 97]), (None, [bos, 97]), (False, [97])):
            fields = {} if given == "absent" else {"add_special_tokens": given}
            assert server.post("/tokenize", {"prompt": "a", **fields}).json["tokens"] == ids


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none"},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [{"role": "system", "content": "be brief"}, USER, {"role": "assistant", "content": None}, USER]},
        {"messages": [USER, {"role": "developer", "content": [{"type": "text", "text": "now"}]}, USER]},
        {"temperature": 0, "max_tokens": 5, "seed": 1, "stream": False},
    ],
)
def test_a_conversation_has_the_ids_that_the_chat_route_runs(server: Server, fields: dict[str, Any]) -> None:
    body = {"messages": [USER], **fields}
    assert server.post(CHAT, body).status == 200
    answer = server.post("/tokenize", body)
    assert answer.status == 200, answer.body
    assert answer.json["tokens"] == list(server.last_request().prompt_ids)
    assert answer.json["count"] == len(answer.json["tokens"])


def test_without_the_generation_prompt() -> None:
    template = CHATML.replace(
        "<|im_start|>assistant\n", "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    for source, end in ((template, "<|im_start|>assistant\n"), (None, "assistant:")):
        with running(ScriptedEngine(), template=source) as server:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            whole = server.post("/tokenize", body).json["tokens"]
            short = server.post("/tokenize", {**body, "add_generation_prompt": False}).json["tokens"]
        assert whole == short + TOKENIZER.encode(end, parse_special=True)


def test_a_text_longer_than_the_window_is_counted() -> None:
    with running(ScriptedEngine(context_length=64)) as server:
        assert server.post("/tokenize", {"prompt": "x" * 1000}).json["count"] == 1000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"prompt": None, "messages": None}, None),
        ({"prompt": "a", "messages": [USER]}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ({"prompt": "a", "model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role"),
        ({"messages": [USER], "add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"messages": [USER], "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [USER], "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": [USER], "tools": "all"}, "tools"),
        ({"prompt": "x" * (MAX_CHARS + 1)}, "prompt"),
    ],
)
def test_bodies_that_are_refused(body: dict[str, Any], param: str | None) -> None:
    with running(ScriptedEngine()) as server:
        answer = server.post("/tokenize", body)
        assert (answer.status, answer.error["param"]) == (400, param)
        if param is None:
            assert answer.error["message"] == "/tokenize takes a JSON body with messages or prompt"


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_detokenize(server: Server, path: str) -> None:
    ids = [*"h\u00e9\u2028".encode(), END_ID]
    assert server.post(path, {"tokens": ids}).json == {"prompt": "h\u00e9\u2028<|im_end|>"}
    assert server.post(path, {"tokens": []}).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"tokens": "1,2"}, "tokens"),
        ({"tokens": [1, "2"]}, "tokens[1]"),
        ({"tokens": [True]}, "tokens[0]"),
        ({"tokens": [1.0]}, "tokens[0]"),
        ({"tokens": [0, 512]}, "tokens[1]"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"tokens": [10**30]}, "tokens[0]"),
        ({"tokens": [0] * (MAX_TOKENS + 1)}, "tokens"),
    ],
)
def test_tokens_that_are_refused(body: dict[str, Any], param: str) -> None:
    with running(ScriptedEngine()) as server:
        answer = server.post("/detokenize", body)
        assert (answer.status, answer.error["param"]) == (400, param)


def test_there_and_back(server: Server) -> None:
    text = "Gr\u00fc\u00dfe \U0001f600 <think>x</think>"
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["prompt"] == text


@pytest.mark.parametrize("path", ["/tokenizer_info", "/v1/tokenizer_info"])
def test_the_tokenizer_describes_itself(server: Server, path: str) -> None:
    info = server.get(path).json
    assert (info["bos_token"], info["eos_token"], info["pad_token"]) == ("<s>", "<|im_end|>", None)
    assert (info["bos_token_id"], info["eos_token_ids"]) == (TOKENIZER.bos_id, [END_ID])
    assert (info["chat_template"], info["vocab_size"]) == (CHATML, TOKENIZER.vocab_size)
    assert info["model_max_length"] == server.engine.context_length


def test_while_the_model_loads() -> None:
    with running(ScriptedEngine(reply_ids("x"))) as server:
        service, server.state.service = server.state.service, None
        for method, path in (("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/tokenizer_info")):
            answer = server.request(method, path, {"prompt": "a"} if method == "POST" else None)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        server.state.service = service


def test_an_unknown_model_where_names_are_strict() -> None:
    with running(ScriptedEngine(), strict_model=True) as server:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            assert server.post(path, body).status == 200
            assert server.post(path, {"model": "other", **body}).error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/openai/v1/embeddings"])
def test_embeddings_are_refused_in_words(server: Server, path: str) -> None:
    answer = server.post(path, {"model": "scripted", "input": "hello", "encoding_format": "base64"})
    assert (answer.status, answer.error["code"]) == (400, "embeddings_not_supported")
    assert "does not host an embedding model" in answer.error["message"]
    server.works()
