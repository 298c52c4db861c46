"""What the page talks to: its turns, its sessions, the served model and the load."""

from dataclasses import replace
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.rendering import ReplyOptions
from jaxfold.api.exchange.turns import start_turn
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import read_object
from jaxfold.api.http.wire import timestamp
from jaxfold.api.ollama.fields import default_sampling
from jaxfold.api.ollama.models import is_hosted
from jaxfold.api.ollama.wire import plain_error
from jaxfold.api.state import ServerState
from jaxfold.api.uploads.store import Uploads
from jaxfold.api.webui.fields import read_page_request
from jaxfold.api.webui.replies import PageTurn
from jaxfold.api.webui.sessions import Sessions
from jaxfold.chat.reply import Reply


class Page:
    """The page's server side. `uploads` None: the server takes no files."""

    def __init__(self, state: ServerState, uploads: Uploads | None) -> None:
        self._state = state
        self._uploads = uploads
        self.sessions = Sessions()

    async def answer(self, body: Body, size: int) -> Response:
        """One turn, as a stream of frames.

        Raises:
            ApiError, RequestError, EngineError: it is refused; nothing was sent yet.
        """
        state = self._state
        service = state.require_service()
        model = state.settings.model
        call = Incoming(body, size, state, service, exchange_of(request.scope), model, ReplyOptions(stream=True))
        vocab = service.engine.info.vocab_size
        turn = await call.read(lambda: read_page_request(body, state.settings, service.template, vocab, self._uploads))
        session = self.sessions.use(turn.session_id)
        session.turns = 1 if turn.new_chat else session.turns + 1

        async def without_thinking() -> Reply:
            kwargs = {name: value for name, value in turn.chat.template_kwargs.items() if name != "reasoning_effort"}
            again = replace(turn.chat, enable_thinking=False, template_kwargs=kwargs)
            return await start_turn(call, await service.prepare_chat(again))

        reply = await start_turn(call, await service.prepare_chat(turn.chat))
        return PageTurn(call, session.id, without_thinking if turn.chat.enable_thinking else None).respond(reply)


def webui_routes(state: ServerState, page: Page) -> Blueprint:
    """/api/sessions, /api/models, /api/models/load, /api/queue/status."""
    routes = Blueprint("webui", __name__)

    @routes.post("/api/sessions")
    async def create_session() -> Response:
        session = page.sessions.create()
        return json_response({"sessionId": session.id, "createdAt": timestamp(session.created)})

    @routes.delete("/api/sessions/<session_id>")
    async def dispose_session(session_id: str) -> Response:
        try:
            page.sessions.dispose(session_id)
        except ApiError as error:
            return plain_error(error, ok=False)
        return json_response({"ok": True, "sessionId": session_id})

    @routes.get("/api/models")
    async def models() -> Response:
        return json_response(_models(state))

    @routes.post("/api/models/load")
    async def load() -> Response:
        try:
            body, _ = await read_object(request)
            return json_response(_load(body, state))
        except Exception as error:
            return plain_error(error, ok=False)

    @routes.get("/api/queue/status")
    async def queue_status() -> Response:
        engine = state.engine()
        now = None if engine is None else engine.snapshot()
        running = 0 if now is None else now.requests_running
        waiting = 0 if now is None else now.requests_waiting
        total = 0 if now is None else now.requests_total
        return json_response({"busy": running + waiting > 0, "pending_requests": waiting, "total_processed": total})

    return routes


def _load(body: Body, state: ServerState) -> dict[str, Any]:
    """The answer to a wish to load a model: it is the served one, or it is refused."""
    if not state.settings.serves_chat:
        state.require_service()
    name = string(body, "model")
    if not name:
        raise ApiError(400, "model is required", param="model")
    service = state.require_service()
    if not is_hosted(name, state.settings):
        raise ApiError(400, f"this server serves {state.settings.model} only; start another one for another model")
    platform = service.engine.info.platform
    backend = string(body, "backend")
    if backend and backend.casefold() != platform.casefold():
        raise ApiError(400, f"this server runs on {platform}, which is set when it starts", param="backend")
    if string(body, "mmproj") not in (None, "", "none"):
        raise ApiError(400, "this server takes no projector: the model reads only text", param="mmproj")
    return {
        "ok": True,
        "model": _file_name(state),
        "loadedMmProj": None,
        "architecture": service.engine.info.model_type,
    }


def _models(state: ServerState) -> dict[str, Any]:
    """The served model, never with a path of this machine."""
    service, settings = state.service, state.settings
    info = None if service is None else service.engine.info
    template = None if service is None else service.template
    file = settings.model_file
    backends = [] if info is None else [info.platform]
    context = None if info is None else info.context_length
    most = None if service is None else service.settings.default_max_tokens
    sampling = default_sampling(settings)
    return {
        "models": [] if info is None else [_file_name(state)],
        "mmProjModels": [],
        "loaded": None if info is None else _file_name(state),
        "loadedMmProj": None,
        "visionReady": False,
        "acceptsVisionProjector": False,
        "loadedBackend": next(iter(backends), None),
        "defaultBackend": next(iter(backends), None),
        "supportedBackends": backends,
        "architecture": None if info is None else info.model_type,
        "contextTokens": context,
        "modelContextTokens": context if file is None or file.context is None else file.context,
        "defaultMaxTokens": context if most is None else most,
        "video": None,
        "skills": None,
        "name": settings.model,
        "ready": state.ready,
        "thinking": template is not None and bool(template.supports_thinking or template.markers),
        "tools": template is not None and template.supports_tools,
        "sampling": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty,
            "repeat_last_n": sampling.penalty_last_n,
        },
    }


def _file_name(state: ServerState) -> str:
    file = state.settings.model_file
    return state.settings.model if file is None else file.path.name
