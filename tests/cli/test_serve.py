"""`jaxfold serve` in this process: port first, health while loading, one request, signals, and refusals."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.runtime.api import CapacityError
from tests.cli.conftest import Loader
from tests.cli.conftest import Outcome
from tests.cli.conftest import Run

WAIT_S = 30.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of one request; the server may not be listening yet."""
    deadline = time.monotonic() + WAIT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        finally:
            connection.close()


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while call(port, "GET", "/health/ready")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def serve_with(run: Run, client: Callable[[], None], *arguments: object) -> Outcome:
    """Run the command; `client` runs beside it and SIGTERM follows when it is done. What it raises is raised here."""
    failures: list[BaseException] = []

    def beside() -> None:
        try:
            client()
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        outcome = run("serve", *arguments)
    finally:
        thread.join()
    if failures:
        raise failures[0]
    return outcome


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": "x", "messages": [{"role": "user", "content": text}], **fields}


def test_health_answers_while_the_model_loads_and_requests_after(run: Run, loader: Loader, model_file: Path) -> None:
    gate = threading.Event()
    loader.before = lambda: gate.wait(WAIT_S) and None
    port = free_port()
    seen: dict[str, Any] = {}

    def client() -> None:
        seen["live"] = call(port, "GET", "/health/live")[0]
        seen["ready"] = call(port, "GET", "/health/ready")[0]
        seen["early"] = call(port, "POST", "/v1/chat/completions", chat("hi"))[0]
        gate.set()
        wait_ready(port)
        seen["reply"] = call(port, "POST", "/v1/chat/completions", chat("hi"))
        seen["models"] = call(port, "GET", "/v1/models")[1]

    outcome = serve_with(run, client, model_file, "--port", port, "--alias", "other", "--max-tokens", 7)
    assert outcome.code == 0, outcome.err
    assert (seen["live"], seen["ready"], seen["early"]) == (200, 503, 503)
    status, reply = seen["reply"]
    assert status == 200 and reply["choices"][0]["message"]["content"] == "hello"
    assert [model["id"] for model in seen["models"]["data"]] == ["Tiny-1B.Q4_1", "other"]
    assert loader.engines[0].requests[0].max_tokens == 7
    assert "Tiny-1B.Q4_1 is ready after" in outcome.out and f"http://127.0.0.1:{port}/v1" in outcome.out
    assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in outcome.out
    assert "reading weights ... " in outcome.err
    assert not loader.engines[0].snapshot().healthy  # closed with the server


def test_sampling_comes_from_the_model_then_flags_then_the_request(run: Run, loader: Loader, model_file: Path) -> None:
    loader.generation_config = {"temperature": 0.6, "top_k": 20}
    port = free_port()

    def client() -> None:
        wait_ready(port)
        call(port, "POST", "/v1/chat/completions", chat("hi"))
        call(port, "POST", "/v1/chat/completions", chat("hi", temperature=0.1))

    assert serve_with(run, client, model_file, "--port", port, "--top-k", 5).code == 0
    first, second = (request.sampling for request in loader.engines[0].requests)
    assert (first.temperature, first.top_k) == (0.6, 5)
    assert (second.temperature, second.top_k) == (0.1, 5)


def test_a_chat_template_file_takes_the_place_of_the_models(
    run: Run, loader: Loader, model_file: Path, tmp_path: Path
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ bos_token }}[{{ messages[0].content }}]")
    port = free_port()

    def client() -> None:
        wait_ready(port)
        call(port, "POST", "/v1/chat/completions", chat("hi"))

    assert serve_with(run, client, model_file, "--port", port, "--chat-template", template).code == 0
    assert loader.engines[0].requests[0].prompt_ids == (256, *b"[hi]")


def test_a_port_in_use_is_refused_before_the_model_is_looked_at(run: Run, loader: Loader, model_file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run("serve", model_file, "--port", port)
    assert outcome.code == 2 and not loader.options
    assert outcome.err.startswith(f"jaxfold: cannot listen on 127.0.0.1 port {port}: ") and "--port" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("Tiny.gguf", "ends in the middle of a tensor", "output.weight"),
        CapacityError("a context of 9000 tokens does not fit: the largest that does is 4096"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_server(
    run: Run, loader: Loader, model_file: Path, error: Exception
) -> None:
    loader.error = error
    outcome = run("serve", model_file, "--port", 0)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-2:] == [
        "reading weights ... failed", f"jaxfold: {error}"
    ]  # fmt: skip
    assert "Traceback" not in outcome.err


def test_a_fault_while_loading_ends_the_server_with_1(run: Run, loader: Loader, model_file: Path) -> None:
    loader.error = ZeroDivisionError("oops")
    outcome = run("serve", model_file, "--port", 0)
    assert outcome.code == 1 and "unexpected ZeroDivisionError: oops" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_broken_chat_template_is_a_sentence(run: Run, loader: Loader, model_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for %}")
    outcome = run("serve", model_file, "--port", 0, "--chat-template", template)
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert not loader.engines  # refused before any engine was made
    template.write_bytes(b"\xff\xfe")
    outcome = run("serve", model_file, "--port", 0, "--chat-template", template)
    assert outcome.code == 2 and str(template) in outcome.err


def test_a_stop_while_loading_does_not_wait_for_the_model(
    run: Run, loader: Loader, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    loader.before = lambda: gate.wait(WAIT_S) and None
    port = free_port()
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("jaxfold.cli.hosts_flags.os._exit", leave)
    try:
        outcome = serve_with(run, lambda: call(port, "GET", "/health/live") and None, model_file, "--port", port)
    finally:
        gate.set()
    assert (outcome.code, left) == (0, [0])


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_an_open_address_is_warned_about(run: Run, loader: Loader, model_file: Path, host: str, warned: bool) -> None:
    loader.error = CheckpointError(model_file, "ends the test")
    outcome = run("serve", model_file, "--host", host, "--port", 0)
    assert ("can be reached from other machines" in outcome.err) is warned


def test_a_host_that_is_not_here_is_a_sentence(run: Run, loader: Loader, model_file: Path) -> None:
    outcome = run("serve", model_file, "--host", "192.0.2.1")
    assert outcome.code == 2 and "cannot listen on 192.0.2.1" in outcome.err and not loader.options
