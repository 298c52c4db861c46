"""GET /openapi.json and /docs: a description of every route, made from the routes themselves.

Paths and methods come from the application's own URL map, bodies from the tables that the parsers go by
(`openapi_fields`), errors from the format of the path. `OPERATIONS` adds what cannot be read off: summaries, replies.
A route that it does not name is still listed, with its function's docstring and a body without details.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from jinja2 import Environment
from quart import Blueprint
from quart import Quart
from quart import Response
from werkzeug.routing import Rule

from jaxfold import __version__
from jaxfold.api.access.admission import route_name
from jaxfold.api.http.formats import format_of
from jaxfold.api.http.wire import json_response
from jaxfold.api.openapi.fields import DECISIONS
from jaxfold.api.openapi.fields import DETOKENIZE
from jaxfold.api.openapi.fields import MESSAGES
from jaxfold.api.openapi.fields import RESPONSES
from jaxfold.api.openapi.fields import TOKENIZE
from jaxfold.api.openapi.fields import Schema
from jaxfold.api.openapi.fields import embeddings_schema
from jaxfold.api.openapi.fields import route_schema
from jaxfold.api.openapi.replies import SCHEMAS
from jaxfold.api.openapi.under_api import OLLAMA
from jaxfold.api.openapi.under_api import PAGE
from jaxfold.api.openapi.under_api import UNDER_API
from jaxfold.api.state import ServerState

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
UNVERSIONED = ("/api/", "/uploads", "/health", "/metrics", "/openapi.json", "/docs")
ALIASES = ("/anthropic/",)
"""Second names of routes that the document does not list again."""
PAGE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    }
)

STATUSES: Mapping[int, str] = MappingProxyType(
    {
        400: "a field is wrong or not supported, or the prompt does not fit",
        401: "no valid API key",
        403: "a foreign host or web page",
        404: "not found",
        408: "the body did not arrive in time",
        413: "the body is too large",
        415: "a form, a compressed body, or a web page's request that is not JSON",
        429: "the queue is full; Retry-After says when to try again",
        500: "the engine failed",
        501: "not something that this server does",
        503: "loading or shutting down, or the queue is full; Retry-After says when to try again",
        529: "the queue is full; Retry-After says when to try again",
    }
)
READ_ERRORS = (401, 403, 404, 500, 503)
BODY_ERRORS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)

_PARAMETER = re.compile(r"{([a-z_]+)}")


@dataclass(frozen=True, slots=True)
class Operation:
    """What the document says about a method of a route, beyond what the route itself tells.

    `reply` and `body` name schemas of the components; `streams` says that the reply may be server-sent events; `text`
    is the content type of a reply that is not JSON.
    """

    summary: str
    tag: str
    reply: str | None = None
    body: str | None = None
    streams: bool = False
    text: str | None = None


BODIES: Mapping[str, Schema] = MappingProxyType(
    {
        "ChatRequest": route_schema("chat"),
        "CompletionRequest": route_schema("completions"),
        "MessagesRequest": MESSAGES,
        "ResponsesRequest": RESPONSES,
        "TokenizeRequest": TOKENIZE,
        "DetokenizeRequest": DETOKENIZE,
        "EmbeddingsRequest": embeddings_schema(),
        "DecisionsRequest": DECISIONS,
    }
)

OPERATIONS: Mapping[tuple[str, str], Operation] = MappingProxyType(
    {
        ("POST", "/chat/completions"): Operation(
            "Continue a conversation", "OpenAI", "ChatCompletion", "ChatRequest", streams=True
        ),
        ("POST", "/completions"): Operation(
            "Continue texts or token ids", "OpenAI", "Completion", "CompletionRequest", streams=True
        ),
        ("POST", "/embeddings"): Operation("One vector for each text", "OpenAI", "Embeddings", "EmbeddingsRequest"),
        ("POST", "/decisions"): Operation(
            "Probabilities of choices, levels, yes and no", "OpenAI", "Decisions", "DecisionsRequest"
        ),
        ("POST", "/responses"): Operation("OpenAI's Responses", "OpenAI", "Response", "ResponsesRequest", streams=True),
        ("GET", "/responses/{response_id}"): Operation("A stored response", "OpenAI", "Response"),
        ("DELETE", "/responses/{response_id}"): Operation("Forget a stored response", "OpenAI", "Deleted"),
        ("GET", "/models"): Operation(
            "The ids that are served; in Anthropic's form for a request with anthropic-version", "OpenAI", "ModelList"
        ),
        ("GET", "/models/{model_id}"): Operation("One id that is served", "OpenAI", "Model"),
        ("POST", "/messages"): Operation(
            "Anthropic's Messages", "Anthropic", "AnthropicMessage", "MessagesRequest", streams=True
        ),
        ("POST", "/messages/count_tokens"): Operation("Count a prompt's tokens", "Anthropic", "AnthropicCount"),
        ("POST", "/tokenize"): Operation("The ids of a text or a conversation", "Tokens", "Tokens", "TokenizeRequest"),
        ("POST", "/detokenize"): Operation("The text of ids", "Tokens", "Prompt", "DetokenizeRequest"),
        ("GET", "/tokenizer_info"): Operation("Special tokens and chat template", "Tokens", "TokenizerInfo"),
        ("GET", "/"): Operation("The web page, or health where there is none", "Operation", "Health", text="text/html"),
        ("GET", "/health"): Operation("State and counters", "Operation", "Health"),
        ("GET", "/health/live"): Operation("503 when the process should be restarted", "Operation", "Status"),
        ("GET", "/health/ready"): Operation("503 while no request is taken", "Operation", "Status"),
        ("GET", "/metrics"): Operation("Prometheus metrics", "Operation", text="text/plain"),
        ("GET", "/openapi.json"): Operation("This document", "Operation"),
        ("GET", "/docs"): Operation("This document as a page", "Operation", text="text/html"),
    }
)
"""By method and route name, as `admission.route_name` gives it."""


TAGS = ("OpenAI", "Anthropic", OLLAMA, "Tokens", PAGE, "Operation")
"""The order of the page."""


def openapi_routes(app: Quart, state: ServerState) -> Blueprint:
    """The document and its page. Both are made once, when they are first asked for."""
    routes = Blueprint("openapi", __name__)

    @lru_cache(maxsize=1)
    def made() -> dict[str, Any]:
        return document(app, keyed=state.settings.keys.required)

    @lru_cache(maxsize=1)
    def page() -> str:
        source = files("jaxfold.api.openapi").joinpath("docs.html").read_text(encoding="utf-8")
        return (
            Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
            .from_string(source)
            .render(made(), tags=TAGS)
        )

    @routes.get("/openapi.json")
    @routes.get("/v1/openapi.json")
    async def openapi() -> Response:
        return json_response(made())

    @routes.get("/docs")
    async def docs() -> Response:
        return Response(page(), 200, dict(PAGE_HEADERS))

    return routes


def document(app: Quart, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an application; `keyed` says that requests need an API key."""
    paths: dict[str, dict[str, Any]] = {}
    for path, method, rule in sorted(_operations(app), key=lambda one: one[:2]):
        paths.setdefault(path, {})[method.lower()] = _operation(app, path, method, rule)
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jaxfold",
            "version": __version__,
            "description": "Open chat models as compiled JAX programs. Fields that are not listed are ignored on the "
            "OpenAI routes; null is the same as a missing field.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"header": []}] if keyed else [],
        "paths": paths,
        "components": {
            "securitySchemes": schemes,
            "schemas": {**SCHEMAS, **BODIES},
        },
    }


def documented_path(name: str) -> str:
    """The one spelling of a route that the document lists."""
    return name if name == "/" or name.startswith(UNVERSIONED) else f"/v1{name}"


def _operations(app: Quart) -> Iterator[tuple[str, str, Rule]]:
    """Each path and method once, with one of its rules."""
    seen = set()
    for rule in app.url_map.iter_rules():
        name = route_name(rule.rule)
        for method in METHODS:
            place = (documented_path(name), method)
            if method in (rule.methods or ()) and place not in seen and not name.startswith(ALIASES):
                seen.add(place)
                yield *place, rule


def _operation(app: Quart, path: str, method: str, rule: Rule) -> dict[str, Any]:
    name = route_name(rule.rule)
    known = OPERATIONS.get((method, name)) or _undescribed(app, path, method, rule)
    found: dict[str, Any] = {
        "summary": known.summary,
        "tags": [known.tag],
        "operationId": f"{method.lower()}{re.sub('[^a-z0-9]+', '_', name)}".rstrip("_"),
        "responses": _responses(known, path, method, has_body=method == "POST"),
    }
    parameters = [
        {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for parameter in _PARAMETER.findall(path)
    ]
    if parameters:
        found["parameters"] = parameters
    if method == "POST":
        schema = {"type": "object"} if known.body is None else _reference(known.body)
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _undescribed(app: Quart, path: str, method: str, rule: Rule) -> Operation:
    function = app.view_functions.get(rule.endpoint)
    text = (getattr(function, "__doc__", None) or "").strip().split("\n")[0]
    tag, summary = UNDER_API.get((method, path), (PAGE, text or path))
    return Operation(summary, tag, text="*/*")


def _responses(known: Operation, path: str, method: str, *, has_body: bool) -> dict[str, Any]:
    style = format_of(path)
    error = {"application/json": {"schema": _reference(f"{style.name}Error")}}
    statuses = {style.statuses.get(status, status) for status in (BODY_ERRORS if has_body else READ_ERRORS)}
    if known.text == "*/*":
        statuses |= {400, 501}
    responses = {"200": {"description": "done", "content": _content(known)}}
    return responses | {str(status): {"description": STATUSES[status], "content": error} for status in sorted(statuses)}


def _content(known: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if known.reply is not None:
        content["application/json"] = {"schema": _reference(known.reply)}
    if known.text is not None:
        content[known.text] = {}
    if not content:
        content["application/json"] = {"schema": {"type": "object"}}
    if known.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
