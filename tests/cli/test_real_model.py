"""The command line and the server over the real SmolLM2, as processes of their own."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jax
import openai
import pytest

from tests.smollm2 import CONTEXT
from tests.smollm2 import LANES
from tests.smollm2 import smollm2_cache

# The first test to come compiles the programs, which takes minutes where the cores are shared.
pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
READY_S = 800.0
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2_cache(tmp_path_factory)


def start(command: str, model: Path, cache: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`jaxfold COMMAND MODEL` in a process, with the tests' number of devices so that it finds their programs."""
    code = "import sys; from jaxfold.cli import main; sys.exit(main())"
    engine = ["--parallel", str(LANES), "--context", str(CONTEXT), "--cache-dir", str(cache)]
    devices = str(len(jax.devices()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": devices}
    return subprocess.Popen(
        [sys.executable, "-c", code, command, str(model), *arguments, *engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_run_answers_in_the_terminal(smollm2_path: Path, real_cache: Path) -> None:
    process = start("run", smollm2_path, real_cache, QUESTION, "--temperature", "0", "--max-tokens", "16")
    out, err = process.communicate(timeout=READY_S)
    assert process.returncode == 0, err
    assert "Paris" in out and out.endswith("\n") and out.count("\n") == 1
    assert "token_sha" in err and "Traceback" not in err
    again = start("run", smollm2_path, real_cache, QUESTION, "--temperature", "0", "--max-tokens", "16")
    assert again.communicate(timeout=READY_S)[0] == out


@pytest.fixture
def server(smollm2_path: Path, real_cache: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server that is ready, and its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    # Quiet, since nobody reads the pipe of its log while it compiles: a full pipe would stop it.
    names = ("--port", str(port), "--name", "smollm2", "--log-level", "warning")
    process = start("serve", smollm2_path, real_cache, *names)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(process, url)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def wait_ready(process: "subprocess.Popen[str]", url: str) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=30) as response:
                assert response.status == 200
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.5)


def test_serve_answers_the_openai_client_and_drains(server: tuple["subprocess.Popen[str]", str]) -> None:
    process, url = server
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        assert [model.id for model in client.models.list()] == ["smollm2"]
        whole = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
        )
        text = whole.choices[0].message.content
        assert text is not None and "Paris" in text
        chunks = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces = list(chunks)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == text
    assert pieces[-1].usage is not None and whole.usage is not None
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    every_protocol_gives_the_same_tokens(url, whole.model_extra)
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        metrics = response.read().decode()
    compiles = [line for line in metrics.splitlines() if "compile" in line and not line.startswith("#")]
    assert compiles and all(line.split()[-1] in ("0", "0.0") for line in compiles), compiles
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "smollm2 is ready after" in out and "Traceback" not in err


def every_protocol_gives_the_same_tokens(url: str, chat: dict[str, Any] | None) -> None:
    """Messages and Responses run the chat's prompt; a new billing line in front of a system text is no new prompt."""
    sha = (chat or {})["jaxfold"]["token_sha"]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        ask: list[anthropic.types.MessageParam] = [{"role": "user", "content": QUESTION}]
        greedy = {"temperature": 0}
        message = client.messages.create(model="smollm2", max_tokens=24, messages=ask, extra_body=greedy)
        assert message.model_extra is not None and message.model_extra["jaxfold"]["token_sha"] == sha
        cached = []
        for value in ("fa690", "00b1c"):
            system = f"x-anthropic-billing-header: cch={value};\n" + "You are a careful coding agent. " * 40
            reply = client.messages.create(model="smollm2", max_tokens=4, system=system, messages=ask)
            cached.append(reply.usage.cache_read_input_tokens or 0)
        assert cached[1] > 0
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as openai_client:
        response = openai_client.responses.create(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=24)
        assert response.model_extra is not None and response.model_extra["jaxfold"]["token_sha"] == sha
        more = openai_client.responses.create(
            model="smollm2", input="And of Italy?", previous_response_id=response.id, max_output_tokens=8
        )
        assert more.usage is not None and more.usage.input_tokens > 50
