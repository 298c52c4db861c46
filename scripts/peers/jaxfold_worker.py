"""jaxfold's engine for bench_peers.py: `python -m peers.jaxfold_worker MODEL PARALLEL CACHE_DIR`, from scripts/."""

import os
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxfold.cli import measure
from jaxfold.runtime.loader import default_cache_dirs
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.options import EngineOptions
from peers.protocol import Events
from peers.protocol import Generate
from peers.protocol import serve


def start(model: Path, parallel: int, cache_dir: Path) -> tuple[Mapping[str, Any], Generate]:
    programs, weights = default_cache_dirs(cache_dir)
    options = EngineOptions(model=model, parallel=parallel, compile_cache_dir=programs, weight_cache_dir=weights)
    steps: list[str] = []
    engine = load_engine(options, steps.append).engine

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, Events]:
        timelines = measure.generate(engine, [tuple(prompt) for prompt in prompts], tokens)
        compiled = engine.snapshot().compiles_after_ready
        if compiled:
            raise RuntimeError(f"{compiled} programs were compiled after the engine was ready")
        return timelines[0].submitted, [list(timeline.events) for timeline in timelines]

    facts = {"jax": version("jax"), "jaxlib": version("jaxlib"), "threads": len(os.sched_getaffinity(0))}
    # A start that compiled has a higher peak of memory than one that found its programs.
    return {**facts, **asdict(engine.info), "steps": steps}, generate


if __name__ == "__main__":
    serve(lambda: start(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
