"""Embeddings over OpenAI's and Ollama's routes: every form of input, limits, refusals, and what the lists say."""

import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxfold.api.embedding_service import MAX_INPUTS
from jaxfold.api.openai.embeddings import MAX_BODY_BYTES
from jaxfold.api.state import ENCODER_ONLY
from jaxfold.runtime.encoders.loader import LoadedEncoder
from tests.api.encoders import CONTEXT
from tests.api.encoders import ENCODER
from tests.api.encoders import chat_and_encoder
from tests.api.encoders import encoder_only
from tests.api.encoders import tiny_encoder
from tests.api.harness import CHAT
from tests.api.harness import MODEL
from tests.api.harness import Answer
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import wait_until
from tests.models.encoder_support import golden
from tests.scripted_engine import ScriptedEngine

PATH = "/v1/embeddings"
LONG = "the boats came home " * 40


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedEncoder]:
    encoder = tiny_encoder(tmp_path_factory.mktemp("encoder-programs"))
    yield encoder
    assert encoder.engine.snapshot().compiles_after_ready == 0
    encoder.engine.close()


@pytest.fixture(scope="module")
def server(loaded: LoadedEncoder) -> Iterator[Server]:
    with chat_and_encoder(loaded, ScriptedEngine(reply_ids("hello"))) as server:
        yield server


@pytest.fixture(scope="module")
def alone(loaded: LoadedEncoder) -> Iterator[Server]:
    with encoder_only(loaded, aliases=("text-embedding-3-small",)) as server:
        yield server


def vectors(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer.body
    data = answer.json["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    assert {one["object"] for one in data} == {"embedding"}
    return np.array([one["embedding"] for one in data], np.float32)


def test_texts(alone: Server) -> None:
    wanted = golden("bert")
    answer = alone.post(PATH, {"model": ENCODER, "input": list(wanted.texts), "user": "me"})
    found = vectors(answer)
    assert (found * wanted.vectors).sum(axis=1).min() > 0.999999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    tokens = sum(map(len, wanted.ids))
    assert answer.json["object"] == "list" and answer.json["model"] == ENCODER
    assert answer.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_every_form_of_input_and_encoding_has_the_same_bits(alone: Server) -> None:
    wanted = golden("bert")
    text, ids = wanted.texts[1], wanted.ids[1]
    whole = vectors(alone.post(PATH, {"input": list(wanted.texts)}))[1]
    for value in (text, [text], ids, [ids], [ids, ids]):
        np.testing.assert_array_equal(vectors(alone.post(PATH, {"input": value}))[0], whole)
    answer = alone.post(PATH, {"input": text, "encoding_format": "base64"})
    raw = base64.b64decode(answer.json["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), whole)


@pytest.mark.parametrize("dimensions", [1, 7, 48, "16"])
def test_dimensions_are_a_unit_vector_again(alone: Server, dimensions: Any) -> None:
    whole = vectors(alone.post(PATH, {"input": "abc"}))[0]
    short = vectors(alone.post(PATH, {"input": "abc", "dimensions": dimensions}))[0]
    kept = whole[: int(dimensions)].astype(np.float64)
    np.testing.assert_allclose(short, kept / np.linalg.norm(kept), atol=1e-6)


def test_many_inputs_keep_their_order(alone: Server) -> None:
    texts = [f"boat {number}" for number in range(200)]
    found = vectors(alone.post(PATH, {"input": texts}))
    for index in (0, 63, 64, 199):
        np.testing.assert_array_equal(vectors(alone.post(PATH, {"input": texts[index]}))[0], found[index])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, 2.0]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [[1], "a"]}, "input"),
        ({"input": [[[1]]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [[1], [10**9]]}, "input[1]"),
        ({"input": [1] * (CONTEXT + 1)}, "input"),
        ({"input": LONG}, "input"),
        ({"input": ["a", LONG]}, "input[1]"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 49}, "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "user": 5}, "user"),
        ({"input": "a", "model": 5}, "model"),
    ],
)
def test_refusals(alone: Server, body: dict[str, Any], param: str) -> None:
    answer = alone.post(PATH, body)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_text_that_is_too_long_says_so(alone: Server) -> None:
    error = alone.post(PATH, {"input": LONG}).error
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]


def test_one_request_takes_so_many_tokens(alone: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxfold.api.embedding_service.MAX_TOKENS", 100)
    assert "one request takes 100" in alone.post(PATH, {"input": [[5] * 60] * 2}).error["message"]


def test_bodies_are_limited(alone: Server) -> None:
    body = json.dumps({"input": "a" * MAX_BODY_BYTES}).encode()
    for path in (PATH, "/api/embed", "/api/show"):
        answer = alone.request("POST", path, body)
        assert answer.status == 413 and b"16 MiB" in answer.body
    assert alone.post(PATH, {"input": "a"}).status == 200


def test_names(loaded: LoadedEncoder, alone: Server) -> None:
    assert alone.post(PATH, {"model": "other", "input": "a"}).json["model"] == ENCODER
    alias = "text-embedding-3-small"
    assert alone.post(PATH, {"model": alias, "input": "a"}).json["model"] == alias
    assert [one["id"] for one in alone.get("/v1/models").json["data"]] == [ENCODER, alias]
    with encoder_only(loaded, strict_model=True) as strict:
        assert strict.post(PATH, {"model": "other", "input": "a"}).error["code"] == "model_not_found"
        assert strict.post(PATH, {"input": "a"}).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
     "/tokenize", "/api/generate", "/api/chat", "/api/chat/ollama", "/api/models/load"],
)  # fmt: skip
def test_an_encoder_alone_refuses_to_generate(alone: Server, path: str) -> None:
    answer = alone.post(path, {"model": ENCODER, **chat_body()})
    assert answer.status == 400 and ENCODER_ONLY in answer.body.decode()


def test_an_encoder_alone_is_ready_and_healthy(alone: Server) -> None:
    assert alone.get("/health/ready").status == alone.get("/health/live").status == 200
    health = alone.get("/health").json
    assert (health["status"], health["ready"], health["model"]) == ("ok", True, ENCODER)
    assert health["embeddings"]["dimensions"] == 48 and health["embeddings"]["pooling"] == "mean"
    page = alone.get("/metrics").body.decode()
    for name in ("requests_total", "inputs_total", "tokens_total", "calls_total", "requests_waiting"):
        assert f"jaxfold:embedding_{name} " in page
    model = alone.get(f"/v1/models/{ENCODER}").json
    assert model["capabilities"] == ["embedding"] and model["max_model_len"] == CONTEXT


def test_chat_and_encoder_side_by_side(server: Server) -> None:
    assert server.post(CHAT, chat_body()).json["choices"][0]["message"]["content"] == "hello"
    assert vectors(server.post(PATH, {"input": "a"})).shape == (1, 48)
    listed = server.get("/v1/models").json["data"]
    assert [(one["id"], one["capabilities"]) for one in listed] == [
        (MODEL, ["completion"]),
        (ENCODER, ["embedding"]),
    ]
    assert server.get("/health").json["embeddings"]["model"] == ENCODER
    tags = server.get("/api/tags").json["models"]
    assert [one["name"] for one in tags] == [MODEL, ENCODER]
    assert [one["name"] for one in server.get("/api/ps").json["models"]] == [MODEL, ENCODER]


def test_the_chat_model_is_no_encoder(server: Server) -> None:
    answer = server.post(PATH, {"model": server.get("/v1/models").json["data"][0]["id"], "input": "a"})
    assert answer.status == 400 and answer.error["param"] == "model"
    assert answer.error["code"] == "embeddings_not_supported" and ENCODER in answer.error["message"]


def test_loading_is_503(loaded: LoadedEncoder) -> None:
    with chat_and_encoder(loaded, ScriptedEngine()) as server:
        encoder, server.state.encoder = server.state.encoder, None
        answer = server.post(PATH, {"input": "a"})
        assert answer.status == 503 and "Retry-After".lower() in answer.headers
        assert server.get("/health").json["status"] == "loading"
        assert server.get("/health/ready").status == 503
        server.state.encoder = encoder
        assert server.get("/health/ready").status == 200


def test_ollama_embed(alone: Server) -> None:
    wanted = golden("bert")
    body = {"model": f"{ENCODER}:latest", "input": list(wanted.texts), "options": {"num_ctx": 5}, "keep_alive": "5m"}
    answer = alone.post("/api/embed", body).json
    assert set(answer) == {"model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"}
    np.testing.assert_array_equal(
        np.array(answer["embeddings"], np.float32), vectors(alone.post(PATH, {"input": list(wanted.texts)}))
    )
    assert answer["prompt_eval_count"] == sum(map(len, wanted.ids)) and answer["total_duration"] > 0
    one = alone.post("/api/embed", {"model": ENCODER, "input": wanted.texts[0], "dimensions": 8}).json
    assert len(one["embeddings"][0]) == 8
    old = alone.post("/api/embeddings", {"model": ENCODER, "prompt": wanted.texts[0]}).json
    assert set(old) == {"embedding"} and old["embedding"] == answer["embeddings"][0]


def test_ollama_cuts_long_texts_unless_told_not_to(alone: Server, loaded: LoadedEncoder) -> None:
    answer = alone.post("/api/embed", {"model": ENCODER, "input": LONG}).json
    assert answer["prompt_eval_count"] == CONTEXT
    ids = loaded.tokenizer.encode([LONG])[0]
    cut = [*ids[: CONTEXT - 1], ids[-1]]
    np.testing.assert_array_equal(np.array(answer["embeddings"], np.float32), vectors(alone.post(PATH, {"input": cut})))
    refused = alone.post("/api/embed", {"model": ENCODER, "input": LONG, "truncate": False})
    assert refused.status == 400 and "maximum context length" in refused.json["error"]


@pytest.mark.parametrize("value", [None, "", []])
def test_ollama_without_input_only_loads(alone: Server, value: Any) -> None:
    answer = alone.post("/api/embed", {"model": ENCODER, "input": value}).json
    assert answer["embeddings"] == [] and answer["prompt_eval_count"] == 0
    assert alone.post("/api/embeddings", {"model": ENCODER, "prompt": value or None}).json == {"embedding": []}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": "a"}, 400),
        ({"model": "nope", "input": "a"}, 404),
        ({"model": MODEL, "input": "a"}, 400),
        ({"model": ENCODER, "input": [1]}, 400),
        ({"model": ENCODER, "input": "a", "truncate": "no"}, 400),
        ({"model": ENCODER, "input": "a", "dimensions": 49}, 400),
        ({"model": ENCODER, "input": "a", "options": []}, 400),
        ({"model": ENCODER, "input": "a", "keep_alive": {}}, 400),
    ],
)
def test_ollama_refusals(server: Server, body: dict[str, Any], status: int) -> None:
    answer = server.post("/api/embed", body)
    assert answer.status == status and list(answer.json) == ["error"]


def test_ollama_describes_the_encoder(server: Server) -> None:
    shown = server.post("/api/show", {"model": ENCODER}).json
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["bert.embedding_length"] == 48
    assert shown["details"]["family"] == "bert" and shown["details"]["format"] == "safetensors"
    answer = server.post("/api/chat", {"model": ENCODER, **chat_body()})
    assert answer.status == 400 and "does not support generation" in answer.json["error"]


def test_a_client_that_leaves_is_forgotten(
    alone: Server, loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, entered, go = loaded.engine, threading.Event(), threading.Event()
    run = engine.programs.run

    def slow(*args: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return run(*args)

    monkeypatch.setattr(engine.programs, "run", slow)
    before = engine.snapshot().cancelled_total
    leaving, staying = alone.connection(), alone.connection()
    headers = {"Content-Type": "application/json"}
    leaving.request("POST", PATH, json.dumps({"input": "first"}), headers)
    assert entered.wait(60)
    staying.request("POST", PATH, json.dumps({"input": "second"}), headers)
    wait_until(lambda: engine.snapshot().requests_waiting == 1)
    leaving.close()
    wait_until(lambda: engine.snapshot().cancelled_total == before + 1)
    go.set()
    response = staying.getresponse()
    assert response.status == 200 and len(json.loads(response.read())["data"]) == 1
    staying.close()


def test_a_full_queue_is_429_or_503(alone: Server, loaded: LoadedEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxfold.runtime.api import QueueFullError

    def full(*_: Any) -> Any:
        raise QueueFullError("The embedding queue is full.")

    monkeypatch.setattr(loaded.engine, "submit", full)
    answer = alone.post(PATH, {"input": "a"})
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert alone.post("/api/embed", {"model": ENCODER, "input": "a"}).status == 503
