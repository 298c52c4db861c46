"""How long `jaxfold serve` takes until it is ready, and the memory it took to get there."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from peers.machine import Watch
from peers.machine import peak_rss
from peers.machine import wait_until_quiet
from peers.worker import ROOT
from peers.worker import START_S
from peers.worker import PeerError

STOP_S = 30.0


def measure_starts(model: Path, parallel: int, warm: int, most_others: float, patience_s: float) -> dict[str, Any]:
    """One start with an empty cache folder, then `warm` starts that find what the first one left."""
    with tempfile.TemporaryDirectory(prefix="jaxfold-start-") as folder:
        runs = []
        for _ in range(1 + warm):
            wait_until_quiet(most_others, time.monotonic() + patience_s)
            runs.append(start_once(model, parallel, Path(folder)))
    return {"cold": runs[0], "warm": runs[1:]}


def start_once(model: Path, parallel: int, cache_dir: Path) -> dict[str, float]:
    """Seconds from the command to the first 200 of /health/ready, peak RSS then, and cores others kept busy.

    Raises:
        PeerError: the server ended or was not ready in ten minutes.
    """
    port = free_port()
    main = "import sys; from jaxfold.cli import main; sys.exit(main())"
    flags = ["--port", str(port), "--parallel", str(parallel), "--cache-dir", str(cache_dir), "--drain-seconds", "0"]
    with tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", main, "serve", str(model), *flags],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        watch = Watch(process.pid)
        try:
            wait_until_ready(process, port)
            ready, others = time.monotonic() - begun, watch.others()
            return {"seconds": ready, "peak_rss": peak_rss(process.pid), "others": others}
        finally:
            stop(process)


def wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    url = f"http://127.0.0.1:{port}/health/ready"
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerError(f"jaxfold serve ended with code {process.returncode} before it was ready")
        try:
            with local.open(url, timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    raise PeerError(f"jaxfold serve was not ready in {START_S:g} s")


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
