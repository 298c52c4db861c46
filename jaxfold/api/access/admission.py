"""What every request passes before its route, unknown paths included: the host's name, the page's origin, the key.

These are Quart hooks, so they run before a route is called or found missing and before a body is read, and what they
refuse is written in the format of the path like every other error.
"""

import re

from quart import Quart
from quart import Response
from quart import request
from quart import websocket

from jaxfold.api.access.keys import unauthorised
from jaxfold.api.access.origins import cors_headers
from jaxfold.api.access.origins import preflight_headers
from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.http.errors import ApiError
from jaxfold.api.state import ServerState

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/v1/health"})
METRICS_PATHS = frozenset({"/metrics", "/v1/metrics"})
READING = ("GET", "HEAD")

_PREFIX = re.compile(r"^/<path:prefix>(?=/)")
_CONVERTER = re.compile(r"<(?:[a-z]+:)?([a-z_]+)>")


def admit_all(app: Quart, state: ServerState) -> None:
    """Make every request of `app` pass here."""

    async def admit() -> Response | None:
        exchange = exchange_of(request.scope)
        exchange.route = route_name(None if request.url_rule is None else request.url_rule.rule)
        if "Transfer-Encoding" in request.headers and "Content-Length" in request.headers:
            # RFC 9112, section 6.1: a proxy may have read another body than we, so nothing more is read here.
            exchange.last = True
            raise ApiError(400, "a request may have Content-Length or Transfer-Encoding, not both")
        host, origin = request.headers.get("Host") or None, request.headers.get("Origin")
        state.settings.browsers.check(host, origin)
        if origin is not None and request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return Response("", 204, dict(preflight_headers(request.headers)))
        label = state.settings.keys.label_of(request.scope["headers"])
        exchange.key = label
        if label is None and not is_open(state, request.method, request.path):
            raise unauthorised(request.scope["headers"], request.scope["query_string"])
        return None

    async def admit_websocket() -> None:
        """No route takes one; a refused handshake must not tell more than any other request."""
        state.settings.browsers.check(websocket.headers.get("Host") or None, websocket.headers.get("Origin"))
        if state.settings.keys.required and state.settings.keys.label_of(websocket.scope["headers"]) is None:
            raise unauthorised(websocket.scope["headers"], websocket.scope["query_string"])

    async def for_pages(response: Response) -> Response:
        response.vary.add("Origin")
        origin = request.headers.get("Origin")
        if origin is not None and state.settings.browsers.allows(origin, request.headers.get("Host")):
            response.headers.update(dict(cors_headers(origin)))
        return response

    app.before_request(admit)
    app.before_websocket(admit_websocket)
    app.after_request(for_pages)


def is_open(state: ServerState, method: str, path: str) -> bool:
    """Whether a request needs no key: none is configured, or it is one of the few that are always answered."""
    if not state.settings.keys.required or method == "OPTIONS" or path in OPEN_PATHS:
        return True
    if path in METRICS_PATHS:
        return state.settings.metrics_open
    return method in READING and state.is_page(path)


def route_name(rule: str | None) -> str:
    """A route's name in metrics: one for all spellings of it, so that their number does not grow with requests."""
    if rule is None:
        return "unknown"
    name = _PREFIX.sub("", rule)
    name = name.removeprefix("/v1") if name.startswith("/v1/") else name
    return _CONVERTER.sub(r"{\1}", name) or "/"
