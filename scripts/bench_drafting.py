"""Measures what drafting gains and costs: pairs of the same request with drafts and without, in turns, on one engine.

    python scripts/bench_drafting.py SmolLM2-135M-Instruct.Q4_1.gguf --pairs 20

Two tasks. "edit" repeats a file with one edit, greedily: nearly everything can be copied, but where the file has a 3
the reply must not (by logit_bias), so drafts fail there and another copy has to be found. "prose" goes on with a story,
sampled, with another seed in each pair: there is nothing to copy, so it shows what looking for copies costs. The two
replies of a pair must be the same tokens, or the script fails. A ratio is time without drafts / time with drafts,
of decoding only; printed are the median of the pairs and the interval that holds it with 95 % confidence, once by the
wall clock and once by the processor time of the whole process, which other work on the machine disturbs less.
"""

import argparse
import math
import platform
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from pathlib import Path

from jaxfold.cli.engine_flags import default_cache_dir
from jaxfold.runtime.api import EngineEvent
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.loader import LoadedModel
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.options import EngineOptions

FILE = '''import socket
import time


class Client:
    """Sends lines to a server and waits for its answers."""

    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout
        self.retries = 5

    def connect(self) -> socket.socket:
        for attempt in range(self.retries):
            try:
                return socket.create_connection((self.host, self.port), self.timeout)
            except OSError:
                time.sleep(0.1 * attempt)
        raise ConnectionError("the server does not answer")

    def ask(self, line: str) -> str:
        with self.connect() as connection:
            connection.sendall(line.encode() + b"\\n")
            return connection.recv(4096).decode()
'''
EDIT = (
    "The file client.py:\n\n```python\n{file}```\n\nThe file client.py again, with another default timeout:"
    "\n\n```python\nimport socket"
)
PROSE = "The harbour was quiet that morning. An old man carried his net along the wall, and"


@dataclass(frozen=True)
class Run:
    """One request: what it cost while it decoded, and its stats."""

    wall_s: float
    cpu_s: float
    stats: RequestStats


class Runner:
    """Runs requests one after the other on a loaded model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._count = 0

    def never(self, text: str) -> tuple[tuple[int, float], ...]:
        """The logit bias that keeps a reply from writing this token."""
        return tuple((token, -100.0) for token in self._model.tokenizer.encode(text))

    def run(self, text: str, tokens: int, sampling: SamplingParams, draft: bool) -> Run:
        """Raises RuntimeError if the engine could not finish the request."""
        self._count += 1
        done = threading.Event()
        ends: list[Finished | Failed] = []
        first: list[tuple[float, float]] = []
        last: list[tuple[float, float]] = []

        def sink(event: EngineEvent) -> None:
            if isinstance(event, Finished | Failed):
                last.append((time.perf_counter(), time.process_time()))
                ends.append(event)
                done.set()
            elif not first:
                first.append((time.perf_counter(), time.process_time()))

        prompt = tuple(self._model.tokenizer.encode(text))
        self._model.engine.submit(EngineRequest(f"r{self._count}", prompt, tokens, sampling, draft=draft), sink)
        done.wait()
        end = ends[0]
        if isinstance(end, Failed):
            raise RuntimeError(end.message)
        return Run(last[0][0] - first[0][0], last[0][1] - first[0][1], end.stats)


def measure(runner: Runner, name: str, text: str, tokens: int, pairs: int, sampling: SamplingParams) -> None:
    """Run the pairs of one task and print what came of them."""
    walls, processors, drafted, accepted, rounds, count = [], [], 0, 0, 0, 0
    for pair in range(pairs + 1):
        seeded = replace(sampling, seed=pair)
        runs = {draft: runner.run(text, tokens, seeded, draft) for draft in (pair % 2 == 0, pair % 2 == 1)}
        with_, without = runs[True], runs[False]
        if with_.stats.token_sha != without.stats.token_sha:
            raise SystemExit(f"{name}: the replies of pair {pair} differ")
        # The first pair only warms up.
        if pair:
            walls.append(without.wall_s / with_.wall_s)
            processors.append(without.cpu_s / with_.cpu_s)
            drafted, accepted = drafted + with_.stats.drafted, accepted + with_.stats.accepted
            rounds, count = rounds + with_.stats.rounds, count + with_.stats.completion_tokens
    print(
        f"{name}: {pairs} pairs of {count // pairs} tokens; wall {interval(walls)}, processor {interval(processors)}; "
        f"{rounds} rounds for {count} tokens, {accepted} of {drafted} drafts accepted",
        flush=True,
    )


def interval(ratios: Sequence[float]) -> str:
    """Median and its distribution-free 95 % interval (all of the range where there are too few)."""
    ordered, count = sorted(ratios), len(ratios)
    # The largest k so that fewer than k of `count` fair coins show heads in at most 2.5 % of all cases.
    below, k = 0.0, 0
    while below + math.comb(count, k) / 2**count <= 0.025:
        below += math.comb(count, k) / 2**count
        k += 1
    k = max(k, 1)
    return f"{statistics.median(ordered):.3f} ({ordered[k - 1]:.3f}..{ordered[-k]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    parser.add_argument("--tasks", nargs="+", choices=("edit", "prose"), default=("edit", "prose"))
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--draft-tokens", type=int, default=7)
    parser.add_argument("--weight-dtype", default="auto")
    args = parser.parse_args()
    cache = default_cache_dir()
    options = EngineOptions(
        model=args.model, context=2048, parallel=args.parallel, draft_tokens=args.draft_tokens,
        weight_dtype=args.weight_dtype, compile_cache_dir=cache / "programs", weight_cache_dir=cache / "weights",
    )  # fmt: skip
    model = load_engine(options, lambda text: print(f"# {text}", flush=True))
    try:
        core, info = model.engine.core, model.engine.info
        if core.planner is None:
            raise SystemExit("drafting is off on this machine")
        print(f"# {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.processor() or platform.machine()}")
        print(f"# {args.model.name}, weights {info.weight_dtype}, rounds: {core.planner.costs}", flush=True)
        runner = Runner(model)
        if "edit" in args.tasks:
            sampling = SamplingParams(temperature=0.0, logit_bias=runner.never("3"))
            measure(runner, "edit", EDIT.format(file=FILE), args.tokens, args.pairs, sampling)
        if "prose" in args.tasks:
            measure(runner, "prose", PROSE, args.tokens, args.pairs, SamplingParams(temperature=1.0))
        print(f"# rounds after it: {core.planner.costs}; {model.engine.snapshot().compiles_after_ready} compiles")
    finally:
        model.engine.close()


if __name__ == "__main__":
    main()
