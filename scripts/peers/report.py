"""The report of bench_peers.py: Markdown that goes into a document as it is."""

import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

MIB = 1 << 20
OURS = "jaxfold"


def markdown(report: Mapping[str, Any]) -> str:
    parts = [heading(report), speed_table(report), disturbance(report), memory(report)]
    if report["starts"] is not None:
        parts.append(starts(report["starts"]))
    return "\n\n".join(parts)


def heading(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    flags = f"{' '.join(machine['flags'])}; without {' '.join(machine['missing'])}"
    lines = [
        f"- command: `{report['command']}`",
        f"- date: {report['date']}; load average {report['load'][0]:.2f} before, {report['load'][1]:.2f} after",
        f"- machine: {machine['cpu']} ({machine['family']}), {machine['cores']} cores used, "
        f"{machine['memory'] // MIB} MiB, {machine['system']}; {flags}",
        f"- model: {report['model']}, the same file for all; {report['threads']} threads each",
    ]
    for name, facts in report["systems"].items():
        shown = ("jax", "jaxlib", "node-llama-cpp", "llama.cpp", "node", "torch", "transformers", "dtype")
        words = [f"{key} {facts[key]}" for key in shown if key in facts]
        if name == OURS:
            words += [f"{key} {facts[f'{key}_dtype']}" for key in ("weight", "compute", "kv")]
            words += [f"level {facts['exactness']}", f"context {facts['context_length']}", f"{facts['lanes']} lanes"]
            words += [step for step in facts["steps"] if "compiled" in step]
        lines.append(f"- {name}: {', '.join(words)}")
    return "\n".join(lines)


def speed_table(report: Mapping[str, Any]) -> str:
    """Medians with their spread, and the median of the ratios round by round."""
    systems = list(report["systems"])
    peers = [name for name in systems if name != OURS]
    rows = [
        ["tokens a second, median (min..max)", *systems, *(f"{OURS} / {name}" for name in peers)],
        ["---"] * (1 + len(systems) + len(peers)),
    ]
    for task in dict.fromkeys(run["task"] for run in report["runs"]):
        rates = {name: rates_of(report["runs"], name, task) for name in systems}
        cells = [spread(rates[name], 1) for name in systems]
        for name in peers:
            cells.append(spread([ours / theirs for ours, theirs in zip(rates[OURS], rates[name], strict=True)], 2))
        rows.append([task, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def rates_of(runs: Sequence[Mapping[str, Any]], system: str, task: str) -> list[float]:
    """In order of the rounds."""
    return [run["rate"] for run in runs if run["system"] == system and run["task"] == task]


def disturbance(report: Mapping[str, Any]) -> str:
    others = [run["others"] for run in report["runs"]]
    loud = sum(not run["quiet"] for run in report["runs"])
    middle, most = statistics.median(others), max(others)
    text = f"Other processes kept {middle:.2f} cores busy during a run (median; at most {most:.2f})"
    if loud:
        return f"{text}; {loud} of {len(others)} runs are above the limit of {report['most_others']:g}."
    return f"{text}; no run is above the limit of {report['most_others']:g}."


def memory(report: Mapping[str, Any]) -> str:
    peaks = report["peak_rss"]
    facts = report["systems"][OURS]
    weights, cache = facts["weight_bytes"], facts["cache_bytes"]
    rest = peaks[OURS] - 1.5 * weights - cache
    lines = [
        f"Peak RSS of {OURS}: {peaks[OURS] // MIB} MiB = 1.5 x {weights // MIB} (weights) + {cache // MIB} (cache) "
        f"{'+' if rest >= 0 else '-'} {abs(rest) / MIB:.0f} MiB."
    ]
    lines += [f"Peak RSS of {name}: {peak // MIB} MiB." for name, peak in peaks.items() if name != OURS]
    return "\n".join(lines)


def starts(measured: Mapping[str, Any]) -> str:
    rows = ["| `jaxfold serve` until ready | seconds | peak RSS, MiB | others, cores |", "| --- | --- | --- | --- |"]
    named = [("empty cache folder", measured["cold"]), *(("warm", run) for run in measured["warm"])]
    for name, run in named:
        rows.append(f"| {name} | {run['seconds']:.1f} | {run['peak_rss'] // MIB} | {run['others']:.2f} |")
    return "\n".join(rows)


def spread(values: Sequence[float], digits: int) -> str:
    """Median (min..max)."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"
