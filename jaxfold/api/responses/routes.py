"""POST /v1/responses, GET and DELETE of a stored one: OpenAI's Responses protocol on top of the chat service."""

import time
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.incoming import accept
from jaxfold.api.exchange.single import Ending
from jaxfold.api.exchange.single import SingleCall
from jaxfold.api.exchange.single import item_id
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.wire import json_response
from jaxfold.api.responses.events import ResponseWriter
from jaxfold.api.responses.events import Save
from jaxfold.api.responses.fields import FIELDS
from jaxfold.api.responses.fields import ResponseRequest
from jaxfold.api.responses.fields import read_previous
from jaxfold.api.responses.fields import read_response_request
from jaxfold.api.responses.history import History
from jaxfold.api.responses.history import reply_message
from jaxfold.api.responses.store import ResponseStore
from jaxfold.api.state import ServerState
from jaxfold.chat.prepared import Prepared

DELETED = {"object": "response", "deleted": True}


def response_routes(state: ServerState, store: ResponseStore) -> Blueprint:
    """POST of any path that ends in /responses, GET and DELETE of a response below it."""
    routes = Blueprint("responses", __name__)
    history = History(store)

    @routes.post("/responses")
    @routes.post("/<path:prefix>/responses")
    async def responses(prefix: str = "") -> Response:
        call = await accept(state, FIELDS.check)
        earlier = await history.conversation(read_previous(call.body))
        context = call.service.engine.info.context_length
        asked = await call.read(lambda: read_response_request(call.body, state.settings, context, earlier))
        prepared = await asked.chat.prepare(call)
        save = _saver(history, asked) if asked.store else None
        writer = ResponseWriter(_head(call, asked, prepared), asked.tools, save, asked.dropped)
        return await SingleCall(call, prepared, writer).respond()

    @routes.get("/responses/<response_id>")
    @routes.get("/<path:prefix>/responses/<response_id>")
    async def stored(response_id: str, prefix: str = "") -> Response:
        if request.args.get("stream", "false").lower() not in ("false", "0", ""):
            raise ApiError(400, "stream is not supported here: a stored response comes whole", param="stream")
        return json_response(await history.find(response_id))

    @routes.delete("/responses/<response_id>")
    @routes.delete("/<path:prefix>/responses/<response_id>")
    async def delete(response_id: str, prefix: str = "") -> Response:
        await history.delete(response_id)
        return json_response({"id": response_id, **DELETED})

    return routes


def _saver(history: History, asked: ResponseRequest) -> Save:
    async def save(response: Any, end: Ending) -> bool:
        return await history.save(response, asked.new, reply_message(end.blocks))

    return save


def _head(call: Incoming, asked: ResponseRequest, prepared: Prepared) -> dict[str, Any]:
    """The response object before its reply."""
    head: dict[str, Any] = {
        "id": item_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": call.model,
        "output": [],
        "usage": None,
    }
    sampling = prepared.sampling
    return head | dict(asked.echo) | {"temperature": sampling.temperature, "top_p": sampling.top_p}
