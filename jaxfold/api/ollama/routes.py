"""POST /api/chat, /api/chat/ollama and /api/generate: Ollama's protocol on top of the chat service."""

from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import replace

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.rendering import ReplyOptions
from jaxfold.api.exchange.turns import start_turn
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import read_object
from jaxfold.api.ollama.fields import Kind
from jaxfold.api.ollama.fields import asks_to_load
from jaxfold.api.ollama.fields import check_body
from jaxfold.api.ollama.fields import read_chat
from jaxfold.api.ollama.fields import read_generate
from jaxfold.api.ollama.models import require_hosted
from jaxfold.api.ollama.replies import OllamaTurn
from jaxfold.api.state import ServerState
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.types import ChatRequest

AnswerPage = Callable[[Body, int], Awaitable[Response]]
"""Answers a request of the page from its body and the body's size."""


def ollama_routes(state: ServerState, answer_page: AnswerPage) -> Blueprint:
    """The generating routes. /api/chat is shared with the page: a body that names a model is Ollama's."""
    routes = Blueprint("ollama", __name__)

    @routes.post("/api/generate")
    async def generate() -> Response:
        return await _answer(state, "generate", *await read_object(request, any_type=True))

    @routes.post("/api/chat/ollama")
    async def chat_ollama() -> Response:
        return await _answer(state, "chat", *await read_object(request, any_type=True))

    @routes.post("/api/chat")
    async def chat() -> Response:
        body, size = await read_object(request, any_type=True)
        if body.get("model") in (None, ""):
            return await answer_page(body, size)
        return await _answer(state, "chat", body, size)

    return routes


async def _answer(state: ServerState, kind: Kind, body: Body, size: int) -> Response:
    service = state.require_service()
    model = require_hosted(body, state.settings)
    check_body(body, kind)
    stream = boolean(body, "stream", default=True)
    call = Incoming(body, size, state, service, exchange_of(request.scope), model, ReplyOptions(stream))
    turn = OllamaTurn(call, kind)
    if asks_to_load(body, "messages" if kind == "chat" else "prompt"):
        return json_response(turn.loaded())
    prepared = await _prepare(call, kind)
    return await turn.respond(prepared, await start_turn(call, prepared))


async def _prepare(call: Incoming, kind: Kind) -> Prepared:
    service, settings = call.service, call.state.settings
    vocab = service.engine.info.vocab_size
    if kind == "chat":
        ask = await call.read(lambda: read_chat(call.body, settings, service.template, call.model, vocab))
        return await service.prepare_chat(ask)
    prompt = await call.read(lambda: read_generate(call.body, settings, service.template, call.model, vocab))
    if isinstance(prompt, ChatRequest):
        return await service.prepare_chat(prompt)
    prepared = await service.prepare_completion(prompt)
    start = service.tokenizer.bos_id
    if start is not None and prepared.prompt_ids[:2] == (start, start):
        # The prompt was written with the token that the tokenizer adds too.
        return replace(prepared, prompt_ids=prepared.prompt_ids[1:])
    return prepared
