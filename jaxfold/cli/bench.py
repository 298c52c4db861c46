"""`jaxfold bench`: the speed of a model on this machine, in process or over HTTP."""

import json
import logging
import os
import platform
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from typing import Final

import click

from jaxfold.cli.engine_flags import engine_flags
from jaxfold.cli.errors import CliError
from jaxfold.cli.measure import MeasureError
from jaxfold.cli.measure import decode_rates
from jaxfold.cli.measure import prefill_rate
from jaxfold.cli.models import served_name
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.parameters import model_argument
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging
from jaxfold.runtime.api import Engine

MEASURE: Final = "Measurement"
MIB: Final = 1 << 20

_measure_flags: Final = options(
    option(
        "--lanes",
        default="1,2,4,8",
        group=MEASURE,
        help="Numbers of replies at the same time, with commas between.",
    ),
    option("--tokens", type=click.IntRange(min=8), default=128, group=MEASURE, help="Length of each measured reply."),
    option("--prefill", type=click.IntRange(min=1), default=512, group=MEASURE, help="Length of the measured prompt."),
    option("--repeat", type=click.IntRange(min=1), default=3, group=MEASURE, help="Runs of each; the median counts."),
    option(
        "--http/--no-http",
        default=False,
        group=MEASURE,
        help="Also compare streaming over HTTP with the engine itself, in interleaved pairs.",
    ),
    option("--pairs", type=click.IntRange(min=2), default=20, group=MEASURE, help="Pairs of that comparison."),
    option("--streams", type=click.IntRange(min=1), default=1, group=MEASURE, help="Replies at the same time in it."),
    option(
        "--json",
        "json_file",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        group="Output",
        help='Write the numbers to this file too; "-" writes them to stdout instead of the table.',
    ),
)


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold bench smollm2:135m
  jaxfold bench smollm2:135m --lanes 1,16 --parallel 16 --json numbers.json
  jaxfold bench smollm2:135m --lanes 1 --http --pairs 30""",
)
@model_argument
@_measure_flags
@engine_flags
@log_level_option
def bench(model: str, lanes: str, json_file: Path | None, log_level: str, **flags: Any) -> None:
    """Measure decoding at several numbers of replies, and prefill, with random prompts and greedy replies."""
    configure_logging(log_level)
    # A line for each request of the comparison would only hide the numbers.
    logging.getLogger("jaxfold.access").setLevel(logging.WARNING)
    counts = lane_counts(lanes, max(flags["parallel"], 1))
    if flags["http"] and flags["streams"] > flags["parallel"]:
        raise CliError(f"--streams {flags['streams']} is more than --parallel {flags['parallel']}")
    from jaxfold.cli.loading import start

    steps = Steps()
    with steps:
        started = start(model, flags, steps)
    ready = steps.total()
    try:
        with steps:
            result = measure_all(started.model.engine, counts, flags, steps)
            if flags["http"]:
                from jaxfold.cli.bench_http import compare_http

                result["http"] = compare_http(started, served_name(model, None), flags, steps)
    except MeasureError as error:
        raise CliError(str(error)) from None
    finally:
        started.close()
    report = {"model": served_name(model, None), **environment(started.model.engine), "ready_seconds": ready, **result}
    if json_file is not None:
        text = json.dumps(report, indent=2)
        if str(json_file) == "-":
            click.echo(text)
            return
        json_file.write_text(text + "\n", encoding="utf-8")
    print_table(report)


def lane_counts(text: str, parallel: int) -> list[int]:
    """The numbers in --lanes.

    Raises:
        CliError: not whole positive numbers, or more than the engine runs at a time.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise CliError(f"--lanes {text!r} is no list of whole numbers such as 1,2,4,8")
    counts = [int(word) for word in words]
    if max(counts) > parallel:
        raise CliError(f"--lanes {max(counts)} is more than --parallel {parallel}")
    return counts


def measure_all(
    engine: Engine, lanes: list[int], flags: dict[str, Any], progress: Callable[[str], None]
) -> dict[str, Any]:
    """The numbers of one engine: a list of runs and its median for each point."""
    tokens, repeat, length = flags["tokens"], flags["repeat"], flags["prefill"]
    progress("warming up")
    decode_rates(engine, max(lanes), 8, 1)
    points = []
    for count in lanes:
        progress(f"decoding {count} at a time")
        runs = decode_rates(engine, count, tokens, repeat)
        points.append({"lanes": count, "tokens_per_s": statistics.median(runs), "runs": runs})
    progress(f"prefill of {length} tokens")
    runs = [prefill_rate(engine, length, seed) for seed in range(repeat)]
    prefill = {"tokens": length, "tokens_per_s": statistics.median(runs), "runs": runs}
    return {"decode": points, "prefill": prefill, "memory": memory(engine)}


def memory(engine: Engine) -> dict[str, int]:
    """Bytes: of this process at its peak, of the weights and of the cache."""
    import resource

    # ru_maxrss counts KiB on Linux and bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak_rss": peak, "weights": engine.info.weight_bytes, "cache": engine.info.cache_bytes}


def environment(engine: Engine) -> dict[str, Any]:
    """What the numbers depend on."""
    info = engine.info
    return {
        "jaxfold": version("jaxfold"),
        "jax": version("jax"),
        "python": platform.python_version(),
        "platform": info.platform,
        "cpus": os.cpu_count(),
        "model_type": info.model_type,
        "weight_dtype": info.weight_dtype,
        "compute_dtype": info.compute_dtype,
        "kv_dtype": info.kv_dtype,
        "exactness": info.exactness,
        "compiles_after_ready": engine.snapshot().compiles_after_ready,
    }


def print_table(report: dict[str, Any]) -> None:
    """The report for a person."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    dtypes = f"weights {report['weight_dtype']}, compute {report['compute_dtype']}, cache {report['kv_dtype']}"
    console.print(f"{report['model']} on {report['platform']} ({report['cpus']} CPUs), jax {report['jax']}, {dtypes}")
    table = Table("what", "tokens/s", "runs")
    for point in report["decode"]:
        _add(table, f"decode, {point['lanes']} at a time", point)
    _add(table, f"prefill of {report['prefill']['tokens']}", report["prefill"])
    console.print(table)
    used = report["memory"]
    console.print(
        f"peak memory {used['peak_rss'] // MIB} MiB (weights {used['weights'] // MIB}, cache {used['cache'] // MIB}), "
        f"ready after {report['ready_seconds']:.1f} s"
    )
    if "http" in report:
        http = report["http"]
        console.print(
            f"HTTP streaming keeps {http['ratio']:.1%} of the engine's rate (95 % interval {http['low']:.1%} to "
            f"{http['high']:.1%}, {http['pairs']} pairs, {http['streams']} at a time)"
        )


def _add(table: Any, what: str, point: dict[str, Any]) -> None:
    table.add_row(what, f"{point['tokens_per_s']:.1f}", " ".join(f"{run:.1f}" for run in point["runs"]))
