"""GET / and /webui/*: the page's files, read once when the server starts, under a policy that runs no other script."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.http.errors import ApiError
from jaxfold.api.state import ServerState

FOLDER = Path(__file__).parents[2] / "webui"
TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".json": "application/json",
        ".LICENSE": "text/plain; charset=utf-8",
    }
)
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        # Asked for again each time; the tag makes that a short answer, and an update is seen at once.
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page."""

    data: bytes
    content_type: str
    tag: str


def page_files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Every file of the page by its path below the folder."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in TYPES and path.is_file():
            data = path.read_bytes()
            tag = hashlib.sha256(data).hexdigest()[:32]
            files[path.relative_to(folder).as_posix()] = PageFile(data, TYPES[path.suffix], tag)
    return MappingProxyType(files)


def webui_page_routes(state: ServerState) -> Blueprint:
    """The page at / and /index.html, its files below /webui/; none of them needs a key."""
    routes = Blueprint("webui_page", __name__)
    files = page_files()
    state.add_page("/index.html")
    state.add_page("/webui/")

    @routes.get("/")
    @routes.get("/index.html")
    async def index() -> Response:
        return _answer(files["index.html"])

    @routes.get("/webui/<path:name>")
    async def page_file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "there is no such file", code="not_found")
        return _answer(files[name])

    return routes


def _answer(file: PageFile) -> Response:
    response = Response(file.data, headers={**HEADERS, "Content-Type": file.content_type})
    response.set_etag(file.tag)
    if file.tag in request.if_none_match:
        response.status_code = 304
        response.set_data(b"")
    return response
