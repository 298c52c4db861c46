"""What the HTTP side costs by itself: streamed events a second on one core, and how late its event loop is.

    python scripts/bench_http.py --streams 256 --rounds-per-second 8      # 2,048 events a second
    python scripts/bench_http.py --streams 256 --rounds-per-second 32     # more than one core can

The server runs in a process of its own on one core, over the tests' scripted engine, which gives each stream one token
a round, all at once. The client reads all streams on another core. A task
on the server's event loop sleeps 5 ms at a time; how much later than that it wakes is the loop's lag, which other work
on the machine adds to. `busy_ms` is the processor time that the server used from one such wake to the next: no more of
the lag than that is its own doing. The scripted engine's thread runs on the server's core too.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROTOCOLS = ("chat", "completions", "messages", "responses", "ollama")
TICK_S = 0.005
READ_BYTES = 1 << 16


def request_of(protocol: str) -> tuple[str, dict[str, Any]]:
    """The path and body of an endless stream."""
    messages = [{"role": "user", "content": "hi"}]
    many = 60_000
    match protocol:
        case "completions":
            return "/v1/completions", {"prompt": "hi", "max_tokens": many, "stream": True}
        case "messages":
            return "/v1/messages", {"messages": messages, "max_tokens": many, "stream": True}
        case "responses":
            return "/v1/responses", {"input": "hi", "max_output_tokens": many, "stream": True, "store": False}
        case "ollama":
            return "/api/chat", {"model": "scripted", "messages": messages, "options": {"num_predict": many}}
    return "/v1/chat/completions", {"messages": messages, "max_tokens": many, "stream": True}


def serve(streams: int, rate: float, core: int) -> None:
    """The server's process: prints its port, then for each line of stdin the figures since the line before."""
    os.sched_setaffinity(0, {core})
    sys.path.insert(0, str(ROOT))
    from tests.api.harness import running
    from tests.scripted_engine import ScriptedEngine

    engine = ScriptedEngine(lambda _: repeat(ord("a")), lanes=streams, delay_s=1 / rate)
    with running(engine, drain_seconds=0) as server:
        lags: list[float] = []
        busy: list[float] = []

        async def watch() -> None:
            while True:
                begun, used = time.perf_counter(), time.process_time()
                await asyncio.sleep(TICK_S)
                lags.append(time.perf_counter() - begun - TICK_S)
                busy.append(time.process_time() - used)

        assert server._loop is not None
        watching = asyncio.run_coroutine_threadsafe(watch(), server._loop)
        print(json.dumps({"port": server.port}), flush=True)
        cpu = time.process_time()
        for _ in sys.stdin:
            seen, now = {"lags": sorted(lags), "busy": sorted(busy)}, time.process_time()
            lags.clear()
            busy.clear()
            print(json.dumps(seen | {"cpu_s": now - cpu}), flush=True)
            cpu = now
        watching.cancel()


class Reader:
    """Counts the events of all streams. An event of every protocol ends a line with a closing brace."""

    def __init__(self) -> None:
        self.events = 0

    async def read(self, port: int, protocol: str) -> None:
        """Read one stream until the server ends it."""
        path, body = request_of(protocol)
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        source, target = await asyncio.open_connection("127.0.0.1", port)
        target.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        while data := await source.read(READ_BYTES):
            self.events += data.count(b"}\n")
        target.close()


async def measure(options: argparse.Namespace, port: int, ask: Any) -> dict[str, Any]:
    """The figures of one run."""
    reader = Reader()
    tasks = [asyncio.create_task(reader.read(port, options.protocol)) for _ in range(options.streams)]
    await asyncio.sleep(options.warm_up)
    await asyncio.to_thread(ask)
    before, begun = reader.events, time.perf_counter()
    await asyncio.sleep(options.seconds)
    events, seconds = reader.events - before, time.perf_counter() - begun
    found = await asyncio.to_thread(ask)
    ended = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    def milliseconds(ordered: list[float]) -> dict[str, float]:
        parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {
            name: round(1000 * ordered[min(len(ordered) - 1, int(at * len(ordered)))], 2) for name, at in parts.items()
        }

    return {
        "protocol": options.protocol,
        "streams": options.streams,
        "streams_that_ended": ended,
        "events_per_s": round(events / seconds),
        "cpu": round(found["cpu_s"] / seconds, 2),
        "cpu_us_per_event": round(1e6 * found["cpu_s"] / max(1, events)),
        "lag_ms": milliseconds(found["lags"]),
        "busy_ms": milliseconds(found["busy"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds-per-second", type=float, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=3)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="chat")
    parser.add_argument("--core", type=int, default=0, help="the server's; the client takes the others")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.streams, options.rounds_per_second, options.core)
        return
    command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    others = os.sched_getaffinity(0) - {options.core}
    os.sched_setaffinity(0, others or {options.core})
    assert child.stdin is not None and child.stdout is not None
    source, target = child.stdout, child.stdin

    def ask() -> Any:
        target.write("\n")
        target.flush()
        return json.loads(source.readline())

    try:
        port = json.loads(source.readline())["port"]
        print(json.dumps(asyncio.run(measure(options, port, ask))))
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
