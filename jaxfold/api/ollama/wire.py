"""What the routes under /api share on the wire: NDJSON, their error shape, times in nanoseconds."""

from collections.abc import AsyncIterable
from collections.abc import Mapping
from typing import Any

from quart import Response

from jaxfold.api.http.formats import OLLAMA
from jaxfold.api.http.wire import dumps
from jaxfold.api.http.wire import json_response

NANOSECONDS = 1_000_000_000
STREAM_HEADERS: Mapping[str, str] = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def plain_error(error: BaseException, **fields: Any) -> Response:
    """What a handler raised as {"error": "text"}, with `fields` before it."""
    answer = OLLAMA.translate(error)
    return json_response({**fields, **OLLAMA.body(answer)}, answer.status, answer.headers)


def line(value: Any) -> bytes:
    """One line of a stream."""
    return f"{dumps(value)}\n".encode("ascii")


def ndjson_response(body: AsyncIterable[bytes]) -> Response:
    """A stream of lines, for as long as it takes."""
    response = Response(body, headers=dict(STREAM_HEADERS))
    response.timeout = None
    return response


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * NANOSECONDS))
