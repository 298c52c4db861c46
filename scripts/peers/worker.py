"""One system under measurement, in a process of its own that stands still while another one is measured."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxfold.cli.measure import Timeline
from peers.machine import peak_rss

START_S = 600.0
ANSWER_S = 300.0
ROOT = Path(__file__).resolve().parents[2]


class PeerError(Exception):
    """A worker did not start, died or refused a request. The message is one sentence."""


class Worker:
    """A running worker of `protocol.py`, paused except inside `running()`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])
        with log.open("wb") as stderr:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env={**os.environ, "PYTHONPATH": path},
                    text=True,
                )
            except OSError as error:
                raise PeerError(f"{name}: {command[0]} cannot be started ({error.strerror})") from None
        try:
            self.facts: dict[str, Any] = self._read(START_S)["ready"]
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the process run; it stands still again afterwards."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Timeline]:
        """Greedy replies of exactly `tokens` tokens to all prompts at the same time. Only inside `running()`.

        Raises:
            PeerError: the worker failed, or a reply has another length.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self.name} ended: {self._last_words()}") from None
        answer = self._read(ANSWER_S)
        timelines = [
            Timeline(answer["submitted"], tuple((at, count) for at, count in events)) for events in answer["events"]
        ]
        lengths = {sum(count for _, count in timeline.events) for timeline in timelines}
        if lengths != {tokens}:
            raise PeerError(f"{self.name} gave replies of {sorted(lengths)} tokens where {tokens} were asked for")
        return timelines

    def peak_rss(self) -> int:
        return peak_rss(self.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        # Every answer is one line to one request, so nothing waits unseen in the buffer of `out`.
        if not select.select([out], [], [], timeout_s)[0]:
            raise PeerError(f"{self.name} did not answer in {timeout_s:g} s")
        line = out.readline()
        if not line:
            raise PeerError(f"{self.name} ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
