"""Two real processes that share one model: the tokens of one process, and what happens when one of them dies."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.checkpoints import open_checkpoint
from jaxfold.cli.engine_flags import engine_options
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.hosts.facts import facts_of
from jaxfold.runtime.hosts.meeting import gather
from jaxfold.runtime.hosts.seat import Seat
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import GREEDY
from tests.tiny_engines import PAGE
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

pytestmark = pytest.mark.heavy
LOST_S = 15.0
ASKS = (
    Ask(tuple(range(3, 40)), 24, GREEDY),
    Ask((5, 6, 7, 8, 9) * 30, 40, SamplingParams(temperature=0.9, seed=7, repeat_penalty=1.2)),
    Ask((9, 8, 7), 30, SamplingParams(temperature=1.0, top_k=20, top_p=0.9, seed=3, logit_bias=((5, 2.0),))),
)


SECRET = "the secret of two test hosts"
# Few programs: each process compiles them for itself.
FLAGS = {"context": CONTEXT, "page_size": PAGE, "parallel": 1, "weight_dtype": "bf16", "draft": False}


def start_host(host_id: int, http: int, coordinator: int, folder: Path) -> "subprocess.Popen[bytes]":
    """`jaxfold serve` on one of two hosts; its caches are in `folder`, and its log."""
    variables = {"JAXFOLD_HOSTS_SECRET": SECRET, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    variables |= {f"JAXFOLD_{name.upper()}": str(value) for name, value in FLAGS.items()}
    command = [
        sys.executable, "-c", "import sys; from jaxfold.cli import main; sys.exit(main())",
        "serve", str(TINY / "llama"), "--port", str(http), "--coordinator", f"127.0.0.1:{coordinator}",
        "--num-hosts", "2", "--host-id", str(host_id), "--cache-dir", str(folder), "--join-seconds", "120",
    ]  # fmt: skip
    with (folder / f"host{host_id}.log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT)


class Pair:
    """Host 0 and host 1 of one server, on this machine."""

    def __init__(self, folder: Path) -> None:
        self.port, coordinator = ports()
        self._folder = folder
        self.hosts = [start_host(host_id, self.port, coordinator, folder) for host_id in range(2)]

    def log(self, host_id: int) -> str:
        return (self._folder / f"host{host_id}.log").read_text(errors="replace")

    def status(self) -> int:
        """Of /health/ready; 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait_ready(self) -> None:
        while self.status() != 200:
            assert [host.poll() for host in self.hosts] == [None, None], self.log(0) + self.log(1)
            time.sleep(0.2)

    def send(self, ask: Ask, **fields: Any) -> Any:
        sampling = ask.sampling
        body = {
            "model": "llama", "prompt": list(ask.prompt), "max_tokens": ask.tokens, "ignore_eos": True,
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": 0,
            "repeat_penalty": sampling.repeat_penalty, "seed": sampling.seed or 0,
            "logit_bias": {str(token): value for token, value in sampling.logit_bias}, **fields,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=120)

    def wait_dead(self) -> list[int]:
        """Exit codes; every host must end in time."""
        deadline = time.monotonic() + LOST_S
        return [host.wait(max(deadline - time.monotonic(), 0.1)) for host in self.hosts]

    def end(self) -> None:
        for host in self.hosts:
            host.kill()
            host.wait()


def ports() -> tuple[int, int]:
    """A free port, and one with a free one after it."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as first:
            found = int(first.getsockname()[1])
            try:
                socket.create_server(("127.0.0.1", found + 1)).close()
            except OSError:
                continue
            return int(http.getsockname()[1]), found


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        pair.wait_ready()
        yield pair
    finally:
        pair.end()


def test_two_hosts_give_the_tokens_of_one_and_end_together(pair: Pair, programs_dir: Path) -> None:
    replies: dict[int, Any] = {}

    def ask(number: int) -> None:
        with pair.send(ASKS[number]) as response:
            replies[number] = json.load(response)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(ASKS))]
    for thread in threads:
        thread.start()
    engine = tiny_engine("llama", programs_dir)
    alone = [Client(engine).run(one, request_id=f"r{number}").stats() for number, one in enumerate(ASKS)]
    engine.close()
    for thread in threads:
        thread.join()
    assert [replies[number]["jaxfold"]["token_sha"] for number in range(len(ASKS))] == [
        stats.token_sha for stats in alone
    ]
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.port}/health", timeout=30) as response:
        health = json.load(response)
    assert (health["tp"], health["exactness"], health["compiles_after_ready"]) == (2, "A", 0)

    seen, lines = [], []
    with pair.send(Ask((1, 2, 3), 400), stream=True) as stream:
        lines.append(stream.readline())
        pair.hosts[1].kill()
        while pair.hosts[0].poll() is None:
            status = pair.status()
            seen += [status] if status else []
            time.sleep(0.05)
        lines += stream.readlines()
    assert pair.wait_dead() == [70, -9]
    assert seen[-1] == 503 and any(b'"error"' in line for line in lines)
    assert "host 1 is lost" in pair.log(0)


def test_a_follower_without_host_0_ends(tmp_path: Path) -> None:
    """The test is host 0, up to where JAX would start on both, and then dies."""
    http, coordinator = ports()
    settings = engine_options(TINY / "llama", FLAGS)
    facts = facts_of(open_checkpoint(TINY / "llama"), settings, 2)
    follower = start_host(1, http, coordinator, tmp_path)
    seat = Seat("127.0.0.1", coordinator, 2, 0, SECRET.encode(), 120.0)
    try:
        (link,) = gather(seat, facts, lambda _: None)
        link.close()
        assert follower.wait(LOST_S) == 70
        assert "host 0 is lost: it closed the connection" in (tmp_path / "host1.log").read_text()
    finally:
        follower.kill()
        follower.wait()
