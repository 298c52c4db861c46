"""Measures the parts of an engine's rounds on one machine and holds them against what its memory can read.

    python scripts/bench_steps.py SmolLM2-135M-Instruct.Q4_1.gguf

Printed are: how fast two threads read memory (a plain sum); for every decode shape the step and the draw alone, at
several contexts, and which part of the time reading the needed bytes would take; what more context adds to a round,
against reading the added keys and values; the time to the first token of a short request while a long prompt is
filled, against alone; and the processor time of the loop's thread between steps. Times are medians, in milliseconds.
"""

import argparse
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil

from jaxfold.cli.engine_flags import default_cache_dir
from jaxfold.cli.measure import generate
from jaxfold.cli.measure import prompt_ids
from jaxfold.models.plan import Part
from jaxfold.models.plan import Plan
from jaxfold.models.plan import empty_part
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import Tokens
from jaxfold.runtime.device import Device
from jaxfold.runtime.engine import LocalEngine
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.sampling.rows import prepare
from jaxfold.runtime.sampling.rows import rows_from
from jaxfold.runtime.table import StepShape

GREEDY = SamplingParams(temperature=0.0)
BUFFER = 256 << 20
LONG, SHORT = 4000, 128


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read together: the best of five sums over 256 MiB each."""
    arrays = [np.ones(BUFFER // 8, np.int64) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            begun = time.perf_counter()
            list(pool.map(np.sum, arrays))
            best = max(best, threads * BUFFER / (time.perf_counter() - begun))
    return best


class Steps:
    """Single steps and draws on an idle engine's device. The cache's contents are lost."""

    def __init__(self, device: Device, runs: int) -> None:
        self._device = device
        self._runs = runs
        info = device.programs.cfg
        self.kv_bytes = sum(info.kv_bytes_per_token(device.cache.keys[0].dtype.itemsize).values())

    def times(self, shape: StepShape, start: int) -> tuple[float, float]:
        """Milliseconds of a full step of this shape at this position, and of the draw after it."""
        device, table = self._device, self._device.programs.table
        plan = Plan((self._part(shape, start),), np.zeros(sum(table.calls(shape)), np.int32))  # type: ignore[arg-type]
        width = table.draw_rows(shape)
        lanes = min(max(shape.decode, 1), width)
        rows = rows_from([prepare(GREEDY, 0)] * lanes, [start + 1] * lanes, list(range(lanes)), width)
        steps, draws = [], []
        for run in range(self._runs + 1):
            begun = time.perf_counter()
            hidden = device.step(shape, plan)[0]
            hidden.block_until_ready()
            middle = time.perf_counter()
            device.draw(hidden, rows).tokens.block_until_ready()
            if run:
                steps.append(middle - begun)
                draws.append(time.perf_counter() - middle)
        return 1e3 * statistics.median(steps), 1e3 * statistics.median(draws)

    def _part(self, shape: StepShape, start: int) -> Part:
        part = empty_part(shape.parts[0], self._device.programs.table.widths)
        columns = part["tokens"].shape[1]
        part["tokens"][:] = np.arange(columns) + 100
        part["start"][:], part["length"][:], part["keep"][:] = start, columns, 1
        part["slot"][:] = np.arange(len(part["slot"]))
        for group, tables in part["tables"].items():
            pages = self._device.pages[group] - 1
            for lane, table in enumerate(tables):
                table[:] = (np.arange(len(table)) + lane * len(table)) % pages + 1
        return Part(**part)


def show_steps(
    steps: Steps, weight_bytes: int, table: Sequence[StepShape], contexts: Sequence[int], speed: float
) -> None:
    """Print the table of shapes and contexts."""
    print("| shape | context | step | draw | bytes needed, MB | reading them | part of the time |\n|" + " --- |" * 7)
    for shape in table:
        lanes = max(shape.decode, 1)
        for context in contexts:
            step, draw = steps.times(shape, context)
            needed = weight_bytes + lanes * context * steps.kv_bytes
            reading = 1e3 * needed / speed
            print(
                f"| {shape} | {context} | {step:.1f} | {draw:.1f} | {needed / 1e6:.0f} | {reading:.1f} "
                f"| {reading / (step + draw):.2f} |",
                flush=True,
            )


def show_growth(steps: Steps, shape: StepShape, contexts: Sequence[int], speed: float) -> None:
    """Print what the longest context adds to a round, against reading what it added."""
    near, far = (sum(steps.times(shape, context)) for context in (contexts[0], contexts[-1]))
    reading = 1e3 * shape.decode * (contexts[-1] - contexts[0]) * steps.kv_bytes / speed
    print(
        f"{shape}: from {contexts[0]} to {contexts[-1]} tokens of context a round takes {far - near:.1f} ms more; "
        f"reading the added keys and values takes {reading:.1f} ms (ratio {(far - near) / reading:.2f})"
    )


def first_token(engine: LocalEngine, busy: bool, seed: int) -> float:
    """Seconds to the first token of a short request, alone or while a long prompt is filled."""
    vocab, times = engine.info.vocab_size, {}
    done = threading.Event()

    def sink(name: str, last: bool) -> Callable[[EngineEvent], None]:
        def take(event: EngineEvent) -> None:
            if isinstance(event, Tokens):
                times.setdefault(name, time.perf_counter())
            elif last:
                done.set()

        return take

    if busy:
        prompt = prompt_ids(vocab, LONG, seed)
        engine.submit(
            EngineRequest(f"long{seed}", prompt, 1, GREEDY, draft=False, cache_salt=f"l{seed}"), sink("long", False)
        )
        time.sleep(0.2)
    begun = time.perf_counter()
    request = EngineRequest(
        f"short{seed}{busy}", prompt_ids(vocab, SHORT, seed + 1), 1, GREEDY, draft=False, cache_salt=f"s{seed}{busy}"
    )
    engine.submit(request, sink("short", True))
    done.wait()
    while not engine.idle:
        time.sleep(0.01)
    return times["short"] - begun


def show_first_token(engine: LocalEngine, runs: int) -> None:
    """Print both times and their ratio."""
    alone = statistics.median(first_token(engine, False, 10 * i) for i in range(runs))
    beside = statistics.median(first_token(engine, True, 10 * i + 5) for i in range(runs))
    print(
        f"first token of {SHORT} tokens: {1e3 * alone:.0f} ms alone, {1e3 * beside:.0f} ms while a prompt of {LONG} "
        f"is filled (ratio {beside / alone:.2f})"
    )


def show_host_time(engine: LocalEngine, lanes: int, tokens: int) -> None:
    """Print the loop thread's processor time a round, beside the round's time."""
    thread = next(one for one in threading.enumerate() if one.name.startswith("jaxfold-engine"))

    def spent() -> float:
        return next(one.user_time + one.system_time for one in psutil.Process().threads() if one.id == thread.native_id)

    prompts = [prompt_ids(engine.info.vocab_size, 32, 900 + lane) for lane in range(lanes)]
    rounds, cpu, begun = engine.snapshot().rounds_total, spent(), time.perf_counter()
    generate(engine, prompts, tokens)
    seconds, rounds = time.perf_counter() - begun, engine.snapshot().rounds_total - rounds
    print(
        f"{lanes} replies: {1e3 * seconds / rounds:.1f} ms a round, of which the loop's thread computes "
        f"{1e3 * (spent() - cpu) / rounds:.2f} ms ({(spent() - cpu) / seconds:.1%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--contexts", type=int, nargs="+", default=(256, 2048, 8000))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--weight-dtype", default="auto")
    args = parser.parse_args()
    cache = default_cache_dir()
    options = EngineOptions(
        model=args.model, parallel=args.parallel, weight_dtype=args.weight_dtype,
        compile_cache_dir=cache / "programs", weight_cache_dir=cache / "weights",
    )  # fmt: skip
    model = load_engine(options, lambda text: print(f"# {text}", flush=True))
    engine = model.engine
    try:
        info, table = engine.info, engine.core.device.programs.table
        machine = platform.processor() or platform.machine()
        print(f"# {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine}, load {os.getloadavg()[0]:.2f}")
        print(f"# {args.model.name}, weights {info.weight_dtype}, cache {info.kv_dtype}, {info.lanes} lanes")
        show_host_time(engine, 1, 100)
        show_host_time(engine, info.lanes, 100)
        show_first_token(engine, 3)
        speed = read_bandwidth(os.cpu_count() or 1)
        print(f"memory is read at {speed / 1e9:.1f} GB/s")
        steps = Steps(engine.core.device, args.runs)
        shapes = [StepShape(n, 0) for n in table.decode] + [StepShape(0, n) for n in table.chunks]
        contexts = [min(context, info.context_length - 300) for context in args.contexts]
        show_steps(steps, info.weight_bytes, shapes, contexts, speed)
        for width in (table.decode[0], table.decode[-1]):
            show_growth(steps, StepShape(width, 0), contexts, speed)
        print(f"# {engine.snapshot().compiles_after_ready} compiles after ready, load {os.getloadavg()[0]:.2f}")
    finally:
        engine.close()


if __name__ == "__main__":
    main()
