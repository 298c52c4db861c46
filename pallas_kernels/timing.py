"""Timing of one compiled call, for the benches of the operations."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def measure(call: Callable[..., jax.Array], *args: Any, runs: int = 20) -> dict[str, float]:
    """Milliseconds of a call that is compiled and run once before: the median and the least of `runs`."""
    call(*args).block_until_ready()
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        call(*args).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return {"median_ms": statistics.median(seconds) * 1e3, "least_ms": min(seconds) * 1e3}


def report(**facts: Any) -> None:
    """Print one result as a line of JSON; floats to three digits."""
    short = {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps(short), flush=True)
