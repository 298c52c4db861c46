"""A real Redis server for tests: the one on PATH, else Debian's package, unpacked once beside the fetched models."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from jaxfold.checkpoints.catalogue import default_models_dir

PACKAGES = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2", "libatomic1")
WAIT_S = 30.0
PASSWORD = "not-a-secret"


@dataclass
class RedisServer:
    """A running server; it listens on 127.0.0.1 only and keeps nothing on disk."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.url, protocol=2)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


@contextlib.contextmanager
def running_redis(folder: Path, port: int = 0) -> Iterator[RedisServer]:
    """A server on a free port, or on `port`."""
    binary, libraries = redis_binary()
    port = port or _free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "no", "--requirepass", PASSWORD]
    environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    server = RedisServer(port, process)
    try:
        _wait_until_it_answers(server, folder / "redis.log")
        yield server
    finally:
        server.stop()


def redis_binary() -> tuple[Path, Path | None]:
    """The program, and the folder of its libraries where it is not installed.

    Without one a test fails; it is skipped only where JAXFOLD_OFFLINE=1 says that nothing can be fetched.
    """
    found = shutil.which("redis-server")
    if found:
        return Path(found), None
    home = default_models_dir().parent / "test-tools" / "redis"
    if not (home / "ready").exists():
        reason = _fetch(home)
        if reason and os.environ.get("JAXFOLD_OFFLINE") == "1":
            pytest.skip(f"JAXFOLD_OFFLINE=1 and no redis-server: {reason}")
        if reason:
            pytest.fail(f"no redis-server on PATH, and it cannot be fetched: {reason}", pytrace=False)
    return home / "usr" / "bin" / "redis-server", next((home / "usr" / "lib").glob("*-linux-gnu"))


def _fetch(home: Path) -> str | None:
    """Unpack Debian's packages into `home`, as any user; None, or why that failed."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".redis-", dir=home.parent) as folder:
        work = Path(folder)
        tree = work / "tree"
        private = _private_apt(work)
        reason = _run(["apt-get", "download", *PACKAGES], work)
        if reason:
            # The machine's own list of packages is missing or old.
            reason = _run(["apt-get", *private, "update"], work)
            reason = reason or _run(["apt-get", *private, "download", *PACKAGES], work)
        for package in sorted(work.glob("*.deb")):
            reason = reason or _run(["dpkg", "-x", str(package), str(tree)], work)
        if reason:
            return reason
        (tree / "ready").touch()
        with contextlib.suppress(OSError):  # another run was faster
            tree.rename(home)
    return None


def _private_apt(work: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    return ["-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'cache'}"]


def _run(command: list[str], folder: Path) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return None if done.returncode == 0 else f"{' '.join(command[:2])}: {done.stderr.strip().splitlines()[-1:]}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_answers(server: RedisServer, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    with contextlib.closing(server.client()) as client:
        while True:
            try:
                client.ping()
                return
            except redis.exceptions.ConnectionError:
                if server.process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"redis-server did not start: {log.read_text()[-500:]}", pytrace=False)
                time.sleep(0.02)
