"""Measures jaxfold's engine beside llama.cpp and, if asked, transformers on torch: one run, interleaved rounds.

llama.cpp comes prebuilt in npm packages; put them into a folder outside the repository (Node.js 20 or newer):

    mkdir -p ../peers && cd ../peers && npm init -y && npm install --ignore-scripts node-llama-cpp

torch needs an environment of its own with torch, transformers, accelerate and gguf (see make_goldens.py). Then:

    python scripts/bench_peers.py MODEL.gguf --peers-dir ../peers --torch-python ../goldens-venv/bin/python --start

Every system is a process of its own and gets the same file, the same cores, the same prompts of random ids and the same
number of greedy tokens; those that are not being measured are stopped by a signal. A run in which other processes of
the machine kept more than --others cores busy is done again, for up to --patience seconds.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import closing
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import Any

from peers.machine import describe
from peers.report import OURS
from peers.report import markdown
from peers.rounds import Quiet
from peers.rounds import run_rounds
from peers.rounds import tasks
from peers.starts import measure_starts
from peers.worker import PeerError
from peers.worker import Worker

from jaxfold.cli.measure import MeasureError

SCRIPTS = Path(__file__).resolve().parent


def main() -> int:
    args = arguments()
    try:
        use_cores(args.threads)
        report = run(args)
    except (PeerError, MeasureError) as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench_peers: interrupted", file=sys.stderr)
        return 130
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(markdown(report))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure jaxfold's engine beside llama.cpp and transformers on torch.")
    add = parser.add_argument
    add("model", type=existing, help="a GGUF file; every system reads this one")
    add("--peers-dir", type=existing, help="folder where node-llama-cpp is installed; without it llama.cpp is left out")
    add("--torch-python", type=Path, help="Python with torch and transformers; without it torch is left out")
    add("--rounds", type=positive, default=5, help="measured runs of each (default 5)")
    add("--threads", type=positive, default=2, help="cores and threads of every system (default 2)")
    add("--lanes", type=positive, nargs="+", default=[1, 4, 8], help="replies at the same time (default 1 4 8)")
    add("--prompt", type=positive, default=16, help="prompt tokens of a decoding run (default 16)")
    add("--tokens", type=positive, default=64, help="tokens of each reply of a decoding run, 8 or more (default 64)")
    add("--prefill", type=positive, default=512, help="prompt tokens of the prefill run (default 512)")
    add("--cache-dir", type=Path, help="jaxfold's cache folder (default: a new empty one, removed afterwards)")
    add("--start", action="store_true", help="also measure `jaxfold serve` until ready, cold and warm")
    add("--others", type=float, default=0.15, help="cores that other processes may keep busy (default 0.15)")
    add("--patience", type=float, default=60.0, help="seconds to wait for that, for each run (default 60)")
    add("--json", type=Path, help="write every number to this file too")
    args = parser.parse_args()
    if args.tokens < 8:
        parser.error("--tokens must be 8 or more")
    return args


def existing(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text} does not exist")
    return path.resolve()


def positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def use_cores(count: int) -> None:
    """Keep this process and those it starts on `count` cores, so that thread pools of every kind are of that size.

    Raises:
        PeerError: there are fewer.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        raise PeerError(f"--threads {count} is more than the {len(cores)} cores of this process")
    os.sched_setaffinity(0, cores[:count])


def run(args: argparse.Namespace) -> dict[str, Any]:
    loads = [os.getloadavg()[0]]
    parallel = max(args.lanes)
    starts = None
    if args.start:
        say("measuring starts of jaxfold serve")
        starts = measure_starts(args.model, parallel, 3, args.others, args.patience)
    with started(args, parallel) as workers:
        work = tasks(args.lanes, args.prompt, args.tokens, args.prefill)
        vocab = workers[0].facts["vocab_size"]
        runs = run_rounds(workers, work, args.rounds, vocab, Quiet(args.others, args.patience), say)
        peaks = {worker.name: worker.peak_rss() for worker in workers}
        systems = {worker.name: worker.facts for worker in workers}
    loads.append(os.getloadavg()[0])
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": loads,
        "machine": describe(),
        "model": args.model.name,
        "threads": args.threads,
        "most_others": args.others,
        "systems": systems,
        "runs": [asdict(one) for one in runs],
        "peak_rss": peaks,
        "starts": starts,
    }


@contextmanager
def started(args: argparse.Namespace, parallel: int) -> Iterator[list[Worker]]:
    """The workers, jaxfold first; their processes end with the context."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-peers-")))
        cache = args.cache_dir.expanduser().resolve() if args.cache_dir is not None else folder / "cache"
        commands = {
            OURS: [sys.executable, "-m", "peers.jaxfold_worker", str(args.model), str(parallel), str(cache)],
        }
        if args.peers_dir is not None:
            node = shutil.which("node")
            if node is None:
                raise PeerError("there is no node on PATH: llama.cpp is measured through a package of Node.js")
            worker = SCRIPTS / "peers" / "llama_worker.mjs"
            commands["llama.cpp"] = [node, str(worker), str(args.peers_dir), str(args.model), str(args.threads)]
        if args.torch_python is not None:
            # Not resolved: the link inside an environment is what makes it one.
            python = str(args.torch_python.expanduser().absolute())
            commands["torch"] = [python, "-m", "peers.torch_worker", str(args.model), str(args.threads)]
        workers = []
        for name, command in commands.items():
            say(f"starting {name}")
            workers.append(stack.enter_context(closing(Worker(name, command, folder / f"{name}.log"))))
        yield workers


def say(text: str) -> None:
    print(f"bench_peers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
