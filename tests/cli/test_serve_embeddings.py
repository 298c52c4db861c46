"""`jaxfold serve --embeddings`: an encoder alone, and one beside a (scripted) chat model."""

from pathlib import Path

import pytest

from jaxfold.api.state import ENCODER_ONLY
from tests.cli.conftest import Loader
from tests.cli.conftest import Run
from tests.cli.test_serve import call
from tests.cli.test_serve import chat
from tests.cli.test_serve import free_port
from tests.cli.test_serve import serve_with
from tests.cli.test_serve import wait_ready
from tests.models.encoder_support import ENCODERS

BERT = ENCODERS / "bert"


def test_an_encoder_alone(run: Run, programs_dir: Path) -> None:
    port = free_port()

    def client() -> None:
        wait_ready(port)
        status, body = call(port, "POST", "/v1/embeddings", {"input": ["a man", "a boat"], "dimensions": 8})
        assert status == 200 and [len(one["embedding"]) for one in body["data"]] == [8, 8]
        assert body["model"] == "bert"
        status, body = call(port, "POST", "/v1/chat/completions", chat("hi"))
        assert status == 400 and body["error"]["message"] == ENCODER_ONLY
        assert [one["id"] for one in call(port, "GET", "/v1/models")[1]["data"]] == ["bert", "m"]
        assert call(port, "GET", "/health")[1]["embeddings"]["compiles_after_ready"] == 0

    flags = ("--alias", "m", "--cache-dir", programs_dir, "--embedding-context-size", 32)
    outcome = serve_with(run, client, "--embeddings", BERT, "--port", port, *flags)
    assert outcome.code == 0, outcome.err
    assert "bert is ready after" in outcome.out and "48 dimensions, context 32, f32" in outcome.out
    assert f"curl http://127.0.0.1:{port}/v1/embeddings" in outcome.out


def test_an_encoder_beside_a_chat_model(run: Run, loader: Loader, model_file: Path, programs_dir: Path) -> None:
    port = free_port()

    def client() -> None:
        wait_ready(port)
        assert call(port, "POST", "/v1/chat/completions", chat("hi"))[0] == 200
        body = {"model": "enc", "input": "a man"}
        assert call(port, "POST", "/api/embed", body)[1]["model"] == "enc"
        assert call(port, "POST", "/v1/embeddings", body)[0] == 200
        assert [one["id"] for one in call(port, "GET", "/v1/models")[1]["data"]] == ["Tiny-1B.Q4_1", "enc"]

    flags = ("--embedding-name", "enc", "--cache-dir", programs_dir)
    outcome = serve_with(run, client, model_file, "--embeddings", BERT, "--port", port, *flags)
    assert outcome.code == 0, outcome.err
    assert "enc is ready after" in outcome.out and "Tiny-1B.Q4_1 is ready after" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a MODEL"),
        (("model.gguf", "--embedding-name", "a"), "--embedding-name needs --embeddings"),
        (("bert", "--embeddings", "bert"), "both models would be called bert"),
    ],
)
def test_names_that_do_not_go_together(run: Run, arguments: tuple[str, ...], words: str) -> None:
    outcome = run("serve", *arguments)
    assert outcome.code == 2 and words in outcome.err


def test_a_decoder_is_no_encoder(run: Run) -> None:
    llama = ENCODERS.parent / "tiny" / "llama"
    outcome = run("serve", "--embeddings", llama, "--port", free_port(), "--no-disk-cache")
    assert outcome.code == 2 and "modules.json" in outcome.err


def test_an_encoder_is_no_chat_model(run: Run) -> None:
    outcome = run("serve", BERT, "--port", free_port(), "--no-disk-cache")
    assert outcome.code == 2 and "is an encoder (bert): serve it with --embeddings" in outcome.err
