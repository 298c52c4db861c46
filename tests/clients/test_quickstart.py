"""docs/quickstart.md as its reader would try it: every block is run against a server that serves under those names."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxfold.api.uploads.store import UploadSettings
from jaxfold.cli.serve import serve
from tests.api.encoders import chat_and_encoder
from tests.api.encoders import tiny_encoder
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.scripted_engine import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHELL = [text for kind, text in BLOCKS if kind == "sh" and not text.startswith("make ")]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
ADDRESS = "http://127.0.0.1:8080"
REPLY = "The capital of France is Paris."
SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    uploads = UploadSettings(folder=tmp_path_factory.mktemp("uploads"))
    loaded = tiny_encoder(tmp_path_factory.mktemp("encoder-programs"))
    settings = {"model": "smollm2:135m", "encoder": "all-minilm:l6-v2", "webui": True, "uploads": uploads}
    with chat_and_encoder(loaded, ScriptedEngine(reply_ids(REPLY)), **settings) as server:
        yield server
    loaded.engine.close()


def output_of(command: list[str], folder: Path) -> str:
    # Warnings as errors would stop clients for faults of their own at exit.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_every_kind_of_block() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "json"}
    assert len(SHELL) >= 4 and len(PROGRAMS) >= 3


@pytest.mark.parametrize("text", SHELL)
def test_shell(server: Server, tmp_path: Path, text: str) -> None:
    said = output_of(["bash", "-euc", text.replace(ADDRESS, server.url)], tmp_path)
    assert '"error"' not in said
    if "/v1/chat/completions" in text:
        assert json.loads(said)["choices"][0]["message"]["content"] == REPLY
    elif "/v1/embeddings" in text:
        assert [len(one["embedding"]) for one in json.loads(said)["data"]] == [48, 48]
    elif "/api/embed" in text:
        assert [len(one) for one in json.loads(said)["embeddings"]] == [48]
    elif "/api/chat" in text:
        assert '"done":true' in said and '"smollm2:135m"' in said
    elif "/api/upload" in text:
        assert json.loads(said)["ok"] is True
    else:
        assert json.loads(said) == {"status": "ok"}


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs(server: Server, tmp_path: Path, text: str) -> None:
    said = output_of([sys.executable, "-c", text.replace(ADDRESS, server.url)], tmp_path)
    assert said.strip() == REPLY


def test_the_page_in_the_browser_is_there(server: Server) -> None:
    assert f"<{ADDRESS}>" in PAGE
    assert b"<!doctype html>" in server.get("/").body


def test_the_file_of_options(tmp_path: Path) -> None:
    (text,) = (text for kind, text in BLOCKS if kind == "json")
    path = tmp_path / "serve.json"
    path.write_text(text)
    found = serve.make_context("serve", ["--config", str(path)]).params
    assert found["model"] == "/srv/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (found["name"], found["max_tokens"], found["upload_quota_mb"]) == ("smollm2:135m", 2000, 1000)
