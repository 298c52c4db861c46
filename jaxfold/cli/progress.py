"""Start-up steps on stderr, each with the time it took; and the log."""

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Final
from typing import Self
from typing import TextIO

LONG_S: Final = 3.0
"""A step that takes longer is announced before it ends."""
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Steps:
    """Prints "reading weights ... 1.4 s": a call begins a step and ends the one before; leaving ends the last.

    In a terminal a step's line grows; elsewhere (a file, a log collector) it is written whole when the step ends, so
    that other lines cannot land inside it, and a step that lasts is told of meanwhile.

    Not thread-safe: one thread reports at a time.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._whole_lines = not self._stream.isatty()
        self._text = ""
        self._timer: threading.Timer | None = None
        self._begin: float | None = None
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        """Begin a step called `text`."""
        self.end()
        self._begin = time.monotonic()
        self._text = f"{text} ..."
        if self._whole_lines:
            self._timer = threading.Timer(LONG_S, print, (self._text,), {"file": self._stream, "flush": True})
            self._timer.daemon = True
            self._timer.start()
        else:
            print(self._text, end=" ", file=self._stream, flush=True)

    def end(self, word: str = "") -> None:
        """End the running step, if there is one, with its time or with `word`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._begin is not None:
            result = word or f"{time.monotonic() - self._begin:.1f} s"
            print(f"{self._text} {result}" if self._whole_lines else result, file=self._stream, flush=True)
            self._begin = None

    def total(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self.started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end("failed" if kind else "")


def configure_logging(level: str) -> None:
    """Log jaxfold's own messages at `level`, and other libraries' warnings, on stderr."""
    logging.basicConfig(format=LOG_FORMAT, datefmt="%H:%M:%S", level=logging.WARNING, force=True)
    logging.getLogger("jaxfold").setLevel(level.upper())
