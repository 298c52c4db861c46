"""The machine that numbers come from, and how busy others keep it."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
GLANCE_S = 0.4
"""Long enough for the 10 ms steps of the kernel's clocks, short against a measurement."""


def describe() -> dict[str, Any]:
    """CPU, the flags that matter to a product of matrices, cores this process may use, memory, system."""
    facts = {
        key.strip(): value.strip()
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        for key, value in [line.split(":", 1)]
    }
    known = set(facts.get("flags", "").split())
    return {
        "cpu": facts.get("model name", platform.processor()),
        "family": f"family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}",
        "flags": [flag for flag in FLAGS if flag in known],
        "missing": [flag for flag in FLAGS if flag not in known],
        "cores": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def peak_rss(pid: int) -> int:
    """Bytes of physical memory a running process has held at most (what getrusage calls ru_maxrss)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


class Watch:
    """Cores kept busy since it was made by anything but the watched process, stolen time included."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._begun = time.monotonic()
        self._all, self._own = _busy(), self._used()

    def others(self) -> float:
        seconds = time.monotonic() - self._begun
        return max(0.0, (_busy() - self._all) - (self._used() - self._own)) / seconds

    def _used(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


def wait_until_quiet(most: float, deadline: float) -> None:
    """Return when all processes together keep less than `most` cores busy, or at the deadline (monotonic seconds)."""
    while time.monotonic() < deadline:
        begun = _busy()
        time.sleep(GLANCE_S)
        if (_busy() - begun) / GLANCE_S <= most:
            return


def _busy() -> float:
    """Seconds of work of all cores since the machine started; time stolen by the host counts as work."""
    times = psutil.cpu_times()
    # `user` and `nice` hold the guests' time already.
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal
