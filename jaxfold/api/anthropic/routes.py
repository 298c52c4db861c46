"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol on top of the chat service."""

from quart import Blueprint
from quart import Response

from jaxfold.api.anthropic.events import MessageWriter
from jaxfold.api.anthropic.fields import FIELDS
from jaxfold.api.anthropic.fields import read_message_request
from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.incoming import accept
from jaxfold.api.exchange.single import SingleCall
from jaxfold.api.exchange.single import item_id
from jaxfold.api.http.wire import json_response
from jaxfold.api.openai.as_chat import Translated
from jaxfold.api.state import ServerState

PREFIXES = ("", "/v1", "/anthropic", "/anthropic/v1")


def anthropic_routes(state: ServerState) -> Blueprint:
    """Both routes, under each of `PREFIXES`."""
    routes = Blueprint("anthropic", __name__)

    async def messages() -> Response:
        call = await accept(state, FIELDS.check)
        prepared = await (await _read(call)).prepare(call)
        writer = MessageWriter(item_id("msg"), call.model, len(prepared.prompt_ids))
        return await SingleCall(call, prepared, writer).respond()

    async def count_tokens() -> Response:
        call = await accept(state, FIELDS.check)
        asked = await _read(call, counting=True)
        request = await call.read(lambda: asked.request(call))
        with asked.renaming():
            ids = await call.service.tokenize_chat(request)
        return json_response({"input_tokens": len(ids)})

    for prefix in PREFIXES:
        routes.post(f"{prefix}/messages")(messages)
        routes.post(f"{prefix}/messages/count_tokens")(count_tokens)
    return routes


async def _read(call: Incoming, *, counting: bool = False) -> Translated:
    settings, template = call.state.settings, call.service.template
    return await call.read(lambda: read_message_request(call.body, settings, template, counting=counting))
