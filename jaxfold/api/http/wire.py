"""Bytes on the wire: JSON answers and Server-Sent Events.

JSON is written in ASCII: a reply may hold U+2028 or U+0085, where some clients would end a line of the stream.
"""

import json
from collections.abc import AsyncIterable
from collections.abc import Mapping
from datetime import UTC
from datetime import datetime
from typing import Any

from quart import Request
from quart import Response
from werkzeug.exceptions import RequestEntityTooLarge

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.jsonbody import parse_object

_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))

DONE = b"data: [DONE]\n\n"
STREAM_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


def dumps(value: Any) -> str:
    """Compact ASCII JSON. A plain string takes the encoder's short way, about a microsecond."""
    return _ENCODER.encode(value)


def event(value: Any) -> bytes:
    """One Server-Sent Event."""
    return f"data: {dumps(value)}\n\n".encode("ascii")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer."""
    return Response(dumps(value), status, {"Content-Type": "application/json", **(headers or {})})


def error_response(error: ApiError) -> Response:
    """A refusal or a failure before the response has begun."""
    return json_response(error.openai(), error.status, error.headers)


def stream_response(body: AsyncIterable[bytes]) -> Response:
    """A stream of events, for as long as it takes: Quart would cut it after RESPONSE_TIMEOUT without a word."""
    response = Response(body, headers=dict(STREAM_HEADERS))
    response.timeout = None
    return response


async def read_object(request: Request, *, any_type: bool = False) -> tuple[dict[str, Any], int]:
    """The JSON object that a POST carries, and its size in bytes.

    Any content type is taken but the two that forms have, since many scripts forget to name one. With `any_type` these
    too, unless a browser sent them: curl says "form" of all that it is not told the type of.

    Raises:
        ApiError: 415 for a form, for a web page's request that is not said to be JSON and for an encoded (compressed)
            body, 413 for one that is too large.
        RequestError: 400, see `parse_object`.
        RequestTimeout: the body did not arrive in time.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "a Content-Encoding on a request is not supported: send the JSON as it is")
    if "Origin" in request.headers:
        # A page of any site may send other types without asking first; for JSON the browser sends a preflight.
        accepted = request.mimetype == "application/json" or request.mimetype.endswith("+json")
    else:
        accepted = any_type or request.mimetype not in FORM_TYPES
    if not accepted:
        raise ApiError(415, "the request body must be JSON: send Content-Type: application/json")
    try:
        data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        return parse_object(data), len(data)
    except RequestEntityTooLarge:
        limit = (request.max_content_length or 0) / (1 << 20)
        raise ApiError(413, f"the request body exceeds the limit of {limit:g} MiB", code="request_too_large") from None


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 in UTC; now, unless given in seconds since 1970."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"
