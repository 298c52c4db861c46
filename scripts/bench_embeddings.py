"""Sentences a second beside sentence-transformers, on this machine's CPU, in batches of 32.

    python scripts/bench_embeddings.py --model PATH/all-MiniLM-L6-v2 --peer-python ../goldens-venv/bin/python

Both run in processes of their own and take turns, one batch each, so that what else the machine does hits both alike.
A batch is 32 sentences of mixed length (8 to 60 words of a text in this repository), tokenised, encoded and
normalised. Reported are the best and the median batch of each dtype, and the ratio to the peer's float32, by the clock
and by processor time. With `--cores 1` processor time is what a batch costs whatever else the machine does; with more,
torch's threads wait for each other in a busy loop, which costs processor time and, on a busy machine, most speed.
The peer's interpreter needs sentence-transformers.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "tests" / "golden" / "smollm2" / "text.txt"
BATCH = 32


def sentences(count: int) -> list[str]:
    """Pieces of the repository's text of 8 to 60 words, most of them short."""
    words = TEXT.read_text(encoding="utf-8").split()
    chosen = random.Random(0)
    found = []
    for _ in range(count):
        length = min(60, 8 + int(chosen.expovariate(1 / 12)))
        at = chosen.randrange(len(words) - length)
        found.append(" ".join(words[at : at + length]))
    return found


def jaxfold_encoder(model: str, dtype: str) -> Callable[[list[str]], Any]:
    import queue

    import numpy as np

    sys.path.insert(0, str(ROOT))
    from jaxfold.runtime.encoders.loader import EncoderOptions
    from jaxfold.runtime.encoders.loader import load_encoder

    loaded = load_encoder(EncoderOptions(model=Path(model), dtype=dtype))  # type: ignore[arg-type]

    def encode(texts: list[str]) -> Any:
        done: queue.Queue[Any] = queue.Queue()
        loaded.engine.submit(loaded.tokenizer.encode(texts), done.put)
        vectors = done.get().vectors
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return encode


def peer_encoder(model: str, _: str) -> Callable[[list[str]], Any]:
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(model, device="cpu")
    return lambda texts: peer.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)


def worker(kind: str, model: str, dtype: str, count: int, cores: int) -> None:
    """Answers each line on stdin (a batch's number) with the seconds that the batch took, by clock and processor."""
    # Before any library counts the cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["OMP_NUM_THREADS"] = str(cores)
    texts = sentences(count)
    encode = (peer_encoder if kind == "peer" else jaxfold_encoder)(model, dtype)
    for at in range(0, count, BATCH):
        encode(texts[at : at + BATCH])
    print("ready", flush=True)
    for line in sys.stdin:
        batch = texts[int(line) * BATCH : (int(line) + 1) * BATCH]
        begun, used = time.perf_counter(), time.process_time()
        encode(batch)
        print(time.perf_counter() - begun, time.process_time() - used, flush=True)


def start(python: str, kind: str, args: argparse.Namespace, dtype: str) -> subprocess.Popen[str]:
    command = [python, __file__, "--model", args.model, "--worker", kind, "--dtype", dtype]
    command += ["--count", str(args.count), "--cores", str(args.cores)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "ready":
            return process
    raise SystemExit(f"{kind} {dtype} did not start: run {' '.join(command)}")


def timed(process: subprocess.Popen[str], batch: int) -> tuple[float, float]:
    assert process.stdin is not None and process.stdout is not None
    print(batch, file=process.stdin, flush=True)
    clock, processor = map(float, process.stdout.readline().split())
    return clock, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of all-MiniLM-L6-v2")
    parser.add_argument("--peer-python", help="interpreter with sentence-transformers")
    parser.add_argument("--dtypes", default="f32,bf16", help="dtypes of jaxfold to measure")
    parser.add_argument("--rounds", type=int, default=6, help="times that each batch runs")
    parser.add_argument("--count", type=int, default=128, help="sentences")
    parser.add_argument("--cores", type=int, default=2, help="processors of each")
    parser.add_argument("--worker", choices=["peer", "jaxfold"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="f32", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.model, args.dtype, args.count, args.cores)
        return
    running = {f"jaxfold {dtype}": start(sys.executable, "jaxfold", args, dtype) for dtype in args.dtypes.split(",")}
    if args.peer_python:
        running["sentence-transformers"] = start(args.peer_python, "peer", args, "f32")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
    for _ in range(args.rounds):
        for batch in range(args.count // BATCH):
            for name, process in running.items():
                seconds[name].append(timed(process, batch))
    for process in running.values():
        process.kill()
    report(seconds, args)


def report(seconds: dict[str, list[tuple[float, float]]], args: argparse.Namespace) -> None:
    """One line of JSON for each: sentences a second from each batch's best time, and from the median batch."""
    batches = args.count // BATCH
    rates: dict[str, dict[str, float]] = {}
    for name, taken in seconds.items():
        rates[name] = {}
        for at, kind in enumerate(("clock", "processor")):
            column = [times[at] for times in taken]
            best = sum(min(column[batch::batches]) for batch in range(batches))
            rates[name] |= {f"{kind}_best": args.count / best, f"{kind}_median": BATCH / statistics.median(column)}
    peer = rates.get("sentence-transformers")
    for name, found in rates.items():
        line: dict[str, Any] = {"name": name, "cores": args.cores, "load": os.getloadavg()[0]}
        line |= {f"{kind}_per_s": round(rate, 1) for kind, rate in found.items()}
        if peer is not None:
            line |= {f"{kind}_ratio": round(rate / peer[kind], 2) for kind, rate in found.items()}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
