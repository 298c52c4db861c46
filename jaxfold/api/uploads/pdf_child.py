"""Prints the text of a PDF as JSON. A program of its own, run with limits: see `pdf.py`. Imports no jaxfold."""

import json
import resource
import sys
from typing import Any

CPU_SECONDS = 60
MEMORY_BYTES = 2 << 30
MAX_TEXT_CHARS = 16_000_000


def limit() -> None:
    """Bound this process."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def read(path: str, max_pages: int) -> dict[str, Any]:
    """Page after page, until the text is longer than any model reads; `max_pages` 0 is all of them."""
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    pages = len(document)
    texts: list[str] = []
    length = 0
    for number in range(min(pages, max_pages or pages)):
        page = document[number]
        text = page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\0", "")
        length += len(text)
        if length > MAX_TEXT_CHARS:
            break
        texts.append(text)
    joined = "\n\n".join(texts).encode("utf-8", "replace").decode()
    return {"pages": pages, "read": len(texts), "text": joined if joined.strip() else ""}


if __name__ == "__main__":
    limit()
    json.dump(read(sys.argv[1], int(sys.argv[2])), sys.stdout)
