"""The text layer of a PDF, read in a process of its own: a hostile file may cost that process its life and no more."""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxfold.api.http.errors import ApiError

WALL_SECONDS = 120.0
AT_ONCE = 2
CHILD = Path(__file__).with_name("pdf_child.py")


@dataclass(frozen=True, slots=True)
class PdfText:
    """`pages` in the file, of which the first `read` were looked at; `text` is what these hold."""

    pages: int
    read: int
    text: str


class PdfReader:
    """Reads PDFs, at most AT_ONCE at a time. Used on one event loop."""

    def __init__(self, max_pages: int) -> None:
        self._max_pages = max_pages
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def read(self, path: Path) -> PdfText:
        """The text of the file.

        Raises:
            ApiError: 400, it is no PDF that can be read within the limits of time and memory.
        """
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(CHILD), str(path), str(self._max_pages),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                output, _ = await asyncio.wait_for(process.communicate(), WALL_SECONDS)
            except TimeoutError:
                raise _unreadable() from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            raise _unreadable()
        found: dict[str, Any] = json.loads(output)
        return PdfText(int(found["pages"]), int(found["read"]), str(found["text"]))


def _unreadable() -> ApiError:
    return ApiError(400, "the PDF cannot be read: it is broken, locked with a password, or too large to be unpacked")
