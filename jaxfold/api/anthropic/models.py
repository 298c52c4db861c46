"""GET .../models and .../models/{id}: one address for OpenAI's clients and Anthropic's, told apart by a header."""

from collections.abc import Sequence
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.http.errors import model_not_found
from jaxfold.api.http.fields import integer
from jaxfold.api.http.formats import ANTHROPIC_VERSION
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import timestamp
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.models import meant_id
from jaxfold.api.openai.models import model_json
from jaxfold.api.openai.models import models_json
from jaxfold.api.state import ServerState

PAGE_LIMIT = 20
MAX_LIMIT = 1000


def model_routes(state: ServerState) -> Blueprint:
    """Both routes. A request with the header `anthropic-version` gets Anthropic's form, of the chat model only."""
    routes = Blueprint("models", __name__)

    @routes.get("/models")
    @routes.get("/<path:prefix>/models")
    async def models(prefix: str = "") -> Response:
        return json_response(_page(state) if ANTHROPIC_VERSION in request.headers else models_json(state))

    @routes.get("/models/<path:model_id>")
    @routes.get("/v1/models/<path:model_id>")
    @routes.get("/anthropic/models/<path:model_id>")
    @routes.get("/anthropic/v1/models/<path:model_id>")
    async def model(model_id: str) -> Response:
        found = meant_id(model_id, state.settings)
        if ANTHROPIC_VERSION not in request.headers:
            return json_response(model_json(state, found))
        if found not in _chat_ids(state):
            raise model_not_found(model_id)
        return json_response(_model(state, found))

    return routes


def _chat_ids(state: ServerState) -> Sequence[str]:
    return state.settings.model_ids if state.settings.serves_chat else ()


def _page(state: ServerState) -> dict[str, Any]:
    """The ids in `limit`, `after_id` and `before_id` of the query.

    Raises:
        RequestError: 400 with the one that is wrong.
    """
    ids = list(_chat_ids(state))
    limit = integer(request.args, "limit", 1, MAX_LIMIT) or PAGE_LIMIT
    after, before = request.args.get("after_id"), request.args.get("before_id")
    for name, cursor in (("after_id", after), ("before_id", before)):
        if cursor is not None and cursor not in ids:
            raise refusal(name, "names no model of this server")
    if after is not None and before is not None:
        raise refusal("before_id", "cannot be sent beside after_id")
    rest = ids[: ids.index(before)] if before is not None else ids[0 if after is None else ids.index(after) + 1 :]
    page = rest[-limit:] if before is not None else rest[:limit]
    return {
        "data": [_model(state, model_id) for model_id in page],
        "has_more": len(page) < len(rest),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _model(state: ServerState, model_id: str) -> dict[str, Any]:
    engine = state.engine()
    room = None if engine is None else engine.info.context_length
    return {
        "type": "model",
        "id": model_id,
        "display_name": model_id,
        "created_at": timestamp(state.created),
        "lifecycle": "active",
        "max_input_tokens": room,
        "max_tokens": room,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "capabilities": None,
    }
