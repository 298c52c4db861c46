"""POST /api/upload and GET /uploads/NAME: files for the page's chat."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from quart import Blueprint
from quart import Quart
from quart import Request
from quart import Response
from quart import request
from quart.wrappers.request import Body as RequestBody
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.exceptions import RequestTimeout
from werkzeug.sansio.multipart import Data
from werkzeug.sansio.multipart import Epilogue
from werkzeug.sansio.multipart import Event
from werkzeug.sansio.multipart import File
from werkzeug.sansio.multipart import MultipartDecoder
from werkzeug.sansio.multipart import NeedData

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.wire import json_response
from jaxfold.api.state import ServerState
from jaxfold.api.uploads.kinds import HEAD_BYTES
from jaxfold.api.uploads.kinds import claimed
from jaxfold.api.uploads.kinds import kind_of
from jaxfold.api.uploads.pdf import PdfReader
from jaxfold.api.uploads.store import Incoming
from jaxfold.api.uploads.store import Stored
from jaxfold.api.uploads.store import Uploads
from jaxfold.api.uploads.store import decoded

UPLOAD = "/api/upload"
PIECE = 1 << 16
FORM_SLACK = 1 << 20
"""Bytes that the form may have around the file."""
MAX_PARTS = 64
MAX_NAME = 255
SWEEP_S = 600.0
NEEDS_VISION = (
    "The PDF has no text, only pictures of pages; reading them needs a model that sees images, and this one does not."
)
FILE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=3600",
}


def use_uploads(app: Quart, state: ServerState, uploads: Uploads | None) -> None:
    """Add the routes to `app`; without a store they answer that uploads are off."""
    app.register_blueprint(_routes(state, uploads))
    if uploads is None:
        return
    app.request_class = _request_class(uploads.settings.max_bytes + FORM_SLACK)
    sweeper: list[asyncio.Task[None]] = []

    @app.before_serving
    async def start() -> None:
        sweeper.append(asyncio.create_task(_sweep(uploads)))

    @app.after_serving
    async def stop() -> None:
        for task in sweeper:
            task.cancel()
        await asyncio.gather(*sweeper, return_exceptions=True)


async def _sweep(uploads: Uploads) -> None:
    """Old files go even where nobody asks for anything."""
    ttl = uploads.settings.ttl_s
    while ttl is not None:
        await asyncio.sleep(min(SWEEP_S, ttl))
        uploads.sweep()


def _request_class(most: int) -> type[Request]:
    """Requests whose bodies may be larger on the one route that takes files."""

    class UploadRequest(Request):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.path == UPLOAD:
                self.body = RequestBody(self.content_length, most)

    return UploadRequest


def _routes(state: ServerState, uploads: Uploads | None) -> Blueprint:
    routes = Blueprint("uploads", __name__)
    pdfs = PdfReader(0 if uploads is None else uploads.settings.pdf_pages)

    @routes.post(UPLOAD)
    async def upload() -> Response:
        store = _required(uploads)
        boundary = request.mimetype_params.get("boundary", "")
        if request.mimetype != "multipart/form-data" or not boundary:
            raise ApiError(400, "Expected multipart form data")
        decoder = MultipartDecoder(boundary.encode("latin-1", "replace"), FORM_SLACK, max_parts=MAX_PARTS)
        async with contextlib.aclosing(_events(decoder, store)) as events:
            async for event in events:
                if isinstance(event, File) and event.filename:
                    return json_response(await _receive(store, event.filename, events, state, pdfs))
        raise ApiError(400, "No file uploaded")

    @routes.get("/uploads/<name>")
    async def uploaded(name: str) -> Response:
        stored = None if uploads is None else uploads.find(name)
        if stored is None:
            raise ApiError(404, "there is no such file")
        size = stored.path.stat().st_size
        headers = {**FILE_HEADERS, "Content-Type": stored.content_type, "Content-Length": str(size)}
        response = Response(_contents(stored.path, size), headers=headers)
        response.timeout = None
        return response

    return routes


async def _contents(path: Path, size: int) -> AsyncIterator[bytes]:
    """The first `size` bytes of a file, opened when the first is asked for: HEAD asks for none."""
    # Opened here and not in a thread: a cancelled wait for the thread would lose the open file.
    with path.open("rb") as file:
        while size > 0 and (data := await asyncio.to_thread(file.read, min(size, PIECE))):
            size -= len(data)
            yield data


def _required(uploads: Uploads | None) -> Uploads:
    if uploads is None:
        raise ApiError(501, "uploads are off on this server")
    return uploads


async def _pieces() -> AsyncGenerator[bytes | None, None]:
    """The body in small pieces, then None; what the parser holds is bounded by them."""
    body = aiter(request.body)
    while True:
        try:
            chunk = await asyncio.wait_for(anext(body, None), request.body_timeout)
        except TimeoutError:
            raise RequestTimeout() from None
        if chunk is None:
            yield None
            return
        for at in range(0, len(chunk), PIECE):
            yield chunk[at : at + PIECE]


async def _events(decoder: MultipartDecoder, store: Uploads) -> AsyncGenerator[Event, None]:
    """The parts of the form as they arrive."""
    try:
        async for piece in _pieces():
            decoder.receive_data(piece)
            event = decoder.next_event()
            while not isinstance(event, NeedData | Epilogue):
                yield event
                event = decoder.next_event()
            if isinstance(event, Epilogue):
                return
    except RequestEntityTooLarge:
        raise store.too_large() from None
    except ValueError:
        raise ApiError(400, "Expected multipart form data") from None


async def _receive(
    uploads: Uploads, file_name: str, events: AsyncIterator[Event], state: ServerState, pdfs: PdfReader
) -> dict[str, Any]:
    """Store the file whose data `events` holds and describe it.

    Raises:
        ApiError: 400 for what it is, 413 or 507 for how large it is; nothing of it is kept then.
    """
    shown = _plain_name(file_name)
    extension = claimed(shown)
    with uploads.receive() as arriving:
        head = await _write(arriving, events)
        kind = kind_of(extension, head)
        facts: dict[str, Any] = {}
        if kind.media == "text" and kind.extension != "csv":
            facts = {"textContent": await asyncio.to_thread(decoded, arriving.path)}
        elif kind.media == "pdf":
            facts = await _pdf_facts(pdfs, arriving)
        elif kind.media == "video":
            facts = {"frames": [], "frameUrls": []}
        stored = arriving.keep(kind)
    if kind.size is not None:
        facts |= {"width": kind.size[0], "height": kind.size[1]}
    if kind.media in ("text", "pdf"):
        facts |= _text_facts(state) | {"fileBacked": kind.extension == "csv"}
    return _described(stored, shown, kind.media, arriving.size) | facts


async def _write(arriving: Incoming, events: AsyncIterator[Event]) -> bytes:
    """Write the part's data; its first bytes."""
    head = bytearray()
    async for event in events:
        if not isinstance(event, Data):
            break
        head += event.data[: HEAD_BYTES - len(head)]
        await asyncio.to_thread(arriving.write, event.data)
        if not event.more_data:
            break
    arriving.close()
    if not arriving.size:
        raise ApiError(400, "the uploaded file is empty")
    return bytes(head)


async def _pdf_facts(pdfs: PdfReader, arriving: Incoming) -> dict[str, Any]:
    found = await pdfs.read(arriving.path)
    facts: dict[str, Any] = {
        "renderedAsImages": False,
        "pageCount": found.pages,
        "extractedPageCount": found.read,
        "textContent": found.text,
        "complete": found.read == found.pages,
        "warning": None,
    }
    if not found.text:
        return facts | {"needsVision": True, "warning": NEEDS_VISION}
    if found.read < found.pages:
        facts["warning"] = f"Only the first {found.read} of {found.pages} pages were read."
    return facts


def _text_facts(state: ServerState) -> dict[str, Any]:
    """Texts are never cut here: whether a prompt fits is decided when it is sent."""
    engine = state.engine()
    return {
        "truncated": False,
        "truncateLimit": None,
        "truncateUnit": None,
        "modelContextLimit": None if engine is None else engine.info.context_length,
        "originalTokenCount": None,
        "returnedTokenCount": None,
    }


def _described(stored: Stored, shown: str, media: str, size: int) -> dict[str, Any]:
    return {
        "ok": True,
        "file": stored.name,
        "url": f"/uploads/{stored.name}",
        "mediaType": media,
        "fileName": shown,
        "contentType": stored.content_type,
        "size": size,
    }


def _plain_name(name: str) -> str:
    """The last part of a client's path, on one line, not too long (its end says what it is)."""
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(letter for letter in last if letter.isprintable()).strip()
    return printable[-MAX_NAME:]
