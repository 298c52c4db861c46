"""Streaming over HTTP against the engine itself, in the same process and in interleaved pairs."""

import asyncio
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxfold.api.app import create_app
from jaxfold.api.server import Shutdown
from jaxfold.api.server import serve as serve_app
from jaxfold.api.settings import ApiSettings
from jaxfold.cli.loading import Started
from jaxfold.cli.measure import PROMPT_TOKENS
from jaxfold.cli.measure import MeasureError
from jaxfold.cli.measure import Timeline
from jaxfold.cli.measure import compare
from jaxfold.cli.measure import decode_rate
from jaxfold.cli.measure import generate
from jaxfold.cli.measure import prompt_ids
from jaxfold.cli.measure import ratio

START_S = 30.0


def compare_http(started: Started, name: str, flags: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Decode rates of both, the mean ratio (HTTP / engine) and its 95 % interval.

    Raises:
        MeasureError: the server or the client failed.
    """
    tokens, pairs, streams = flags["tokens"], flags["pairs"], flags["streams"]
    engine = started.model.engine

    def prompts(turn: int) -> list[tuple[int, ...]]:
        return [prompt_ids(engine.info.vocab_size, PROMPT_TOKENS, turn * streams + at) for at in range(streams)]

    with _server(started, name) as url, _Client(f"{url}/v1/completions") as client:

        def direct(turn: int) -> float:
            return decode_rate(generate(engine, prompts(turn), tokens))

        def over_http(turn: int) -> float:
            bodies = [_body(name, prompt, tokens, f"{turn}-{at}") for at, prompt in enumerate(prompts(turn))]
            return decode_rate(client.arrivals(bodies))

        progress("HTTP against the engine: warming up")
        compare(over_http, direct, 1)
        progress(f"HTTP against the engine: {pairs} pairs, {streams} at a time")
        https, directs = compare(over_http, direct, pairs)
    found = ratio(https, directs)
    return {
        "streams": streams,
        "pairs": found.pairs,
        "ratio": found.mean,
        "low": found.low,
        "high": found.high,
        "http_tokens_per_s": statistics.median(https),
        "engine_tokens_per_s": statistics.median(directs),
    }


def _body(name: str, prompt: tuple[int, ...], tokens: int, salt: str) -> dict[str, Any]:
    return {
        "model": name,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "draft": False,
        "cache_salt": f"bench-http-{salt}",
    }


@contextmanager
def _server(started: Started, name: str) -> Iterator[str]:
    """The API on a free port of this machine, in a thread with its own event loop; its base URL."""
    address: list[tuple[str, int]] = []
    listening = threading.Event()
    shutdown = Shutdown()
    loop = asyncio.new_event_loop()

    def on_listening(host: str, port: int) -> None:
        address.append((host, port))
        listening.set()

    def run() -> None:
        app = create_app(started.service, ApiSettings(model=name, drain_seconds=1))
        loop.run_until_complete(serve_app(app, "127.0.0.1", 0, on_listening=on_listening, shutdown=shutdown))

    thread = threading.Thread(target=run, name="jaxfold-bench-http", daemon=True)
    thread.start()
    if not listening.wait(START_S):
        raise MeasureError("the HTTP server did not start")
    try:
        yield f"http://{address[0][0]}:{address[0][1]}"
    finally:
        loop.call_soon_threadsafe(shutdown.ask)
        thread.join(START_S)
        loop.close()


class _Client:
    """The streaming client's process."""

    def __init__(self, url: str) -> None:
        self._url = url
        command = [sys.executable, "-m", "jaxfold.cli.stream_client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def arrivals(self, bodies: list[dict[str, Any]]) -> list[Timeline]:
        """When the tokens of each body's reply arrived. The monotonic clock is one for all processes of a machine."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"url": self._url, "bodies": bodies}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the client process ended"}
        if isinstance(answer, dict):
            raise MeasureError(f"the HTTP client failed: {answer['error']}")
        return [Timeline(0.0, tuple((at, count) for at, count in events)) for events in answer]
