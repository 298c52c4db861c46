"""What Ollama's clients ask about the model: tags, show, ps, version, pull, and what is not there."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.settings import ModelFile
from jaxfold.chat.types import RequestError
from tests.api.harness import CHATML
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import Server
from tests.api.harness import running
from tests.api.test_ollama import refused
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

FILE = ModelFile(
    path=Path("/models/tiny.Q4_1.gguf"),
    size=98_362_432,
    modified=1_750_000_000.5,
    format="gguf",
    quantisation="Q4_1",
    parameters=134_515_008,
    context=8192,
)


def test_version(server: Server) -> None:
    version = server.get("/api/version").json["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_tags(server: Server) -> None:
    models = server.get("/api/tags").json["models"]
    assert [model["name"] for model in models] == [MODEL, "other"]
    for model in models:
        assert set(model) == {"name", "model", "modified_at", "size", "digest", "details"}


def test_a_file_is_called_by_its_name() -> None:
    with running(ScriptedEngine(), model="tiny.Q4_1", aliases=("m",), model_file=FILE) as server:
        first, second = server.get("/api/tags").json["models"]
        assert (first["name"], first["model"]) == ("tiny.Q4_1", "tiny.Q4_1.gguf")
        assert (second["name"], second["model"]) == ("m", "m")
        assert first["size"] == FILE.size and first["modified_at"] == "2025-06-15T15:06:40.500000Z"
        assert first["details"] == {
            "parent_model": "",
            "format": "gguf",
            "family": "scripted",
            "families": ["scripted"],
            "parameter_size": "134.5M",
            "quantization_level": "Q4_1",
        }
        for name in ("TINY.q4_1", "tiny.Q4_1.gguf", "/models/tiny.Q4_1.gguf", "m:latest"):
            assert server.post("/api/show", {"model": name}).status == 200
        refused(server.post("/api/show", {"model": "/models/other.gguf"}), 404)
        for path in ("/api/tags", "/api/ps", "/api/models", "/api/show"):
            answer = server.post(path, {"model": "m"}) if path == "/api/show" else server.get(path)
            assert b"/models/tiny" not in answer.body


def test_no_model_is_listed_while_it_loads() -> None:
    def unload(app: Any) -> None:
        from jaxfold.api.app import state_of

        state_of(app).service = None

    with running(ScriptedEngine(), change=unload) as server:
        assert server.get("/api/tags").json == {"models": []}
        assert server.get("/api/ps").json == {"models": []}
        assert server.get("/api/models").json["models"] == []
        answer = server.post("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "a"}]})
        refused(answer, 503)
        assert answer.headers["retry-after"]


def test_ps(server: Server) -> None:
    (model,) = server.get("/api/ps").json["models"]
    assert model["name"] == MODEL
    assert model["context_length"] == server.engine.context_length
    assert model["size_vram"] == 0


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [
        (CHATML, {"completion", "tools"}),
        (THINKING, {"completion", "tools", "thinking"}),
        ("{{ messages[0].content }}", {"completion"}),
    ],
)
def test_show(template: str, capabilities: set[str]) -> None:
    thinks = "thinking" in capabilities
    tokenizer = ByteTokenizer() if thinks else ByteTokenizer(added=())
    with running(ScriptedEngine(), template=template, tokenizer=tokenizer) as server:
        shown = server.post("/api/show", {"model": MODEL, "verbose": True}).json
        assert set(shown["capabilities"]) == capabilities
        assert shown["template"] == template
        assert shown["details"]["family"] == "scripted"
        facts = shown["model_info"]
        assert facts["general.architecture"] == "scripted"
        assert facts["scripted.context_length"] == server.engine.context_length


def test_show_needs_a_name(server: Server) -> None:
    assert refused(server.post("/api/show", {})) == "model is required"
    assert "model" in refused(server.post("/api/show", {"model": 5}))
    assert server.post("/api/show", {"name": MODEL}).status == 200


def test_root_answers_head(server: Server) -> None:
    answer = server.request("HEAD", "/")
    assert answer.status == 200 and answer.body == b""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
    ],
)
def test_what_makes_and_moves_models(server: Server, method: str, path: str) -> None:
    assert path in refused(server.request(method, path, {"model": "x"}), 501)
    assert server.request("HEAD", "/api/blobs/sha256:00").status == 501


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_there_is_no_encoder(server: Server, path: str) -> None:
    assert "embedding" in refused(server.post(path, {"model": MODEL, "input": "a"}), 400)


def test_pull_is_off_unless_allowed(server: Server) -> None:
    assert "--allow-pull" in refused(server.post("/api/pull", {"model": "evil.example/x", "insecure": True}), 403)


def pulling(name: str, progress: Callable[[str], None]) -> None:
    if name != "smollm2:135m":
        raise RequestError(f"{name} is not in the catalogue", "model")
    progress("downloading")
    progress("checking")


def test_pull() -> None:
    with running(ScriptedEngine(), puller=pulling) as server:
        answer = server.post("/api/pull", {"model": "smollm2:135m"})
        assert answer.headers["content-type"] == "application/x-ndjson"
        steps = [json.loads(line) for line in answer.body.splitlines()]
        assert steps == [{"status": "downloading"}, {"status": "checking"}, {"status": "success"}]
        assert server.post("/api/pull", {"name": "smollm2:135m", "stream": False}).json == {"status": "success"}
        assert "catalogue" in refused(server.post("/api/pull", {"model": "evil.example/library/x"}), 404)
        assert "insecure" in refused(server.post("/api/pull", {"model": "smollm2:135m", "insecure": True}))
        assert refused(server.post("/api/pull", {})) == "model is required"


def test_a_pull_that_breaks_tells_nothing_of_our_insides(caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str, progress: Callable[[str], None]) -> None:
        progress("downloading")
        raise OSError(f"{os.sep}secret{os.sep}path")

    with running(ScriptedEngine(), puller=broken) as server:
        *_, last = (json.loads(line) for line in server.post("/api/pull", {"model": "a"}).body.splitlines())
        assert "secret" not in last["error"]
        assert "secret" not in refused(server.post("/api/pull", {"model": "a", "stream": False}), 500)
    assert "secret" in caplog.text
