"""How much cache fits: pages per group from free memory, and refusals that carry the numbers."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import psutil

from jaxfold.models.config import DecoderConfig
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.table import CHUNKS

MIB = 1 << 20
RESERVE_BYTES = 256 * MIB
"""Kept for activations, logits, program code and Python itself."""


@dataclass(frozen=True)
class CachePlan:
    """The window in tokens, the pages of each group (scratch included) and what they take."""

    context: int
    pages: Mapping[str, int]
    cache_bytes: int


def readable(size: int) -> str:
    """Bytes as text in the largest binary unit that leaves at least 1, to three digits: "1.5 MiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = min(max(size.bit_length() - 1, 0) // 10, len(units) - 1)
    value = size / (1 << 10 * step)
    return f"{value:.0f} {units[step]}" if value >= 100 or not step else f"{value:.3g} {units[step]}"


def return_freed_memory() -> None:
    """Ask the C library to give freed memory back; glibc keeps what compilers have freed otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def free_bytes(devices: int = 1) -> int:
    """Memory that may still be taken on each of the first `devices` devices, those of other hosts left out: the least
    of their own, or an equal part of the host's, a container's limit respected."""
    here = local_devices(devices)
    owned = [device.memory_stats() or {} for device in here]
    if all("bytes_limit" in stats for stats in owned):
        return min(int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0)) for stats in owned)
    free = int(psutil.virtual_memory().available)
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return (free if limit is None else min(free, limit - (used or 0))) // max(len(here), 1)


def plan_cache(
    cfg: DecoderConfig,
    *,
    context: int | None,
    lanes: int,
    page_size: int,
    block: int,
    itemsize: int,
    budget: int,
) -> CachePlan:
    """Pages for `lanes` conversations of `context` tokens, or as many as `budget` bytes hold (at least one whole one).

    Args:
        context: tokens asked for; None takes the model's own length, or what fits if that is less.
        block: tokens below which a context that was not asked for is of no use.

    Raises:
        CapacityError: the context asked for does not fit, or nothing useful fits at all.
    """
    per_token = cfg.kv_bytes_per_token(itemsize)
    sizes = {group: size * page_size for group, size in per_token.items()}

    def one(tokens: int) -> dict[str, int]:
        return {group: group_pages(tokens, page_size, window) for group, window in cfg.groups.items()}

    def taken(pages: Mapping[str, int]) -> int:
        return sum((pages[group] + 1) * sizes[group] for group in sizes)

    longest = _largest(lambda tokens: taken(one(tokens)) <= budget, page_size, cfg.max_position)
    if context is not None and context > cfg.max_position:
        raise CapacityError(f"--context {context} is more than the {cfg.max_position} tokens the model was made for")
    wanted = cfg.max_position if context is None else context
    if longest < (min(block, wanted) if context is None else context):
        raise CapacityError(
            f"a context of {wanted} tokens needs {readable(taken(one(wanted)))} of cache, but "
            + (
                f"only {readable(budget)} are free for it; "
                if budget >= 0
                else f"{readable(-budget)} are missing for the weights and the programs alone; "
            )
            + f"the largest that fits is {longest} tokens"
        )
    window = min(wanted, longest)
    single = one(window)
    for count in range(lanes, 0, -1):
        pages = {group: n * count for group, n in single.items()}
        if taken(pages) <= budget:
            break
    pages = {group: n + 1 for group, n in pages.items()}
    return CachePlan(window, pages, sum(pages[group] * sizes[group] for group in sizes))


def group_pages(tokens: int, page_size: int, window: int | None) -> int:
    """Pages that one conversation of `tokens` tokens holds at most at once in a group."""
    pages = -(-tokens // page_size)
    if window is None:
        return pages
    # The window, one chunk being written, and one page at each ragged end; twice, so that prefixes can be kept.
    return min(pages, 2 * (-(-window // page_size) + 2 + CHUNKS[-1] // page_size))


def local_devices(devices: int) -> list[jax.Device]:
    """Those of the first `devices` devices that are this process's."""
    found = jax.devices()[:devices]
    return found if jax.process_count() == 1 else [d for d in found if d.process_index == jax.process_index()]


def _largest(fits: object, step: int, limit: int) -> int:
    """The largest token count up to `limit` that fits, in whole steps (or `limit` itself); 0 if none does."""
    assert callable(fits)
    if fits(limit):
        return limit
    low, high = 0, limit // step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle - 1)
    return low * step


def _cgroup(name: str) -> int | None:
    """A number from the control group's files, None where there is none or no limit."""
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
