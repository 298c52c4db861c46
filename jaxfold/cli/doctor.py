"""`jaxfold doctor`: what this machine is, what a model would get on it, and how exact its replies are."""

import os
import platform
from collections.abc import Iterable
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from jaxfold.cli.engine_flags import engine_flags
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging
from jaxfold.runtime.api import EngineInfo
from jaxfold.runtime.api import ExactnessLevel

if TYPE_CHECKING:
    from jaxfold.runtime.self_check import Verdict

PACKAGES: Final = ("jaxfold", "jax", "jaxlib", "numpy", "orbax-checkpoint", "tokenizers", "quart", "hypercorn")
LEVELS: Final[Mapping[ExactnessLevel, str]] = MappingProxyType(
    {
        "A": "every way to compute a row gives the same bits; a reply's own pages are reused.",
        "B": "decoding agrees with itself and prefill with itself; pages written by decoding are not reused.",
        "C": "replies may depend on what runs beside them; reuse is off.",
    }
)
LANES: Final = (1, 2, 4, 8, 16, 32)
GIB: Final = 1 << 30


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold doctor
  jaxfold doctor smollm2:135m
  jaxfold doctor models/qwen3 --compute-dtype f32""",
)
@click.argument(
    "model", metavar="[MODEL]", required=False, help="The model to load and check; without it, the machine."
)
@engine_flags
@log_level_option
def doctor(model: str | None, log_level: str, **flags: Any) -> None:
    """Print versions, devices and memory; with MODEL also what fits and the exactness self-check."""
    configure_logging(log_level)
    show("Versions", versions())
    show("Machine", machine())
    show("Devices", devices())
    show("Kernels", forms())
    if model is None:
        return
    from jaxfold.cli.loading import start

    with Steps() as steps:
        started = start(model, flags, steps)
    try:
        info = started.model.engine.info
        show("Model", model_facts(info))
        show("What fits", what_fits(info))
        show_self_check(started.model.verdict)
    finally:
        started.close()


def show(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A table of two columns."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)


def show_self_check(verdict: "Verdict | None") -> None:
    """The comparisons behind the exactness level."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if verdict is None:
        console.print("No exactness self-check (--no-self-check).")
        return
    table = Table("rows computed as", "against", "rows", "other bits", title="Exactness", title_justify="left")
    for line in verdict.comparisons:
        mark = "[green]none[/]" if not line.differing else f"[red]{line.differing}[/]"
        table.add_row(line.form, line.against, str(line.rows), mark)
    console.print(table)
    console.print(f"Level {verdict.level}: {LEVELS[verdict.level]}")
    console.print("Checked when these programs first ran on this machine, and kept beside them.")


def versions() -> list[tuple[str, str]]:
    """Package -> version."""
    found = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def machine() -> list[tuple[str, str]]:
    """The host: system, cores that this process may use, memory."""
    import psutil

    from jaxfold.checkpoints.catalogue import default_models_dir

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        ("system", platform.platform()),
        ("cores", f"{cores} of {os.cpu_count()}"),
        ("memory", f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB"),
        ("models and caches", str(default_models_dir().parent)),
    ]


def devices() -> list[tuple[str, str]]:
    """JAX's devices and, where the backend tells, their memory."""
    import jax

    rows = []
    for device in jax.devices():
        stats = device.memory_stats() or {}
        limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
        memory = f", {(limit - used) / GIB:.1f} GiB free of {limit / GIB:.1f} GiB" if limit else ""
        kind = "the host's processor" if device.platform == "cpu" else device.device_kind
        rows.append((f"{device.platform}:{device.id}", f"{kind}{memory}"))
    return rows


def forms() -> list[tuple[str, str]]:
    """Operation -> the form that runs here: compiled for this processor, or plain XLA."""
    from pallas_kernels.forms import kernels

    return [(name, form) for name, _, form in (line.partition(": ") for line in kernels())]


def model_facts(info: EngineInfo) -> list[tuple[str, str]]:
    """What the engine holds in memory."""
    return [
        ("type", info.model_type),
        ("context", f"{info.context_length} tokens"),
        ("dtypes", f"weights {info.weight_dtype}, compute {info.compute_dtype}, cache {info.kv_dtype}"),
        ("weights", f"{info.weight_bytes / GIB:.2f} GiB"),
        ("cache", f"{info.cache_bytes / GIB:.2f} GiB in {info.total_pages} pages of {info.page_size} tokens"),
        ("programs", f"{info.programs} compiled for {info.platform}"),
        ("devices", f"{info.tp}, the model split between them" if info.tp > 1 else "1"),
        ("exactness", f"level {info.exactness}"),
    ]


def what_fits(info: EngineInfo) -> list[tuple[str, str]]:
    """Replies at a time -> the longest conversation each can have in the cache that was made."""
    tokens = info.total_pages * info.page_size
    rows = []
    for lanes in sorted({*LANES, info.lanes}):
        # A conversation takes whole pages.
        each = min(info.context_length, tokens // lanes // info.page_size * info.page_size)
        if lanes <= max(info.lanes, 8) and each:
            rows.append((f"{lanes} at a time", f"{each} tokens each"))
    return rows
