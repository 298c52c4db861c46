"""The Quart application: routes, limits, and one place where every error gets its shape."""

import logging
from typing import Any

from quart import Quart
from quart import Response
from quart import has_request_context
from quart import request
from quart import websocket

from jaxfold.api.access.admission import admit_all
from jaxfold.api.anthropic.models import model_routes
from jaxfold.api.anthropic.routes import anthropic_routes
from jaxfold.api.decisions.routes import decision_routes
from jaxfold.api.exchange.connection import ConnectionGuard
from jaxfold.api.http.formats import ANTHROPIC_VERSION
from jaxfold.api.http.formats import format_of
from jaxfold.api.http.wire import json_response
from jaxfold.api.ollama.embed import ollama_embed_routes
from jaxfold.api.ollama.models import ollama_model_routes
from jaxfold.api.ollama.routes import ollama_routes
from jaxfold.api.openai.chat import chat_routes
from jaxfold.api.openai.completions import completion_routes
from jaxfold.api.openai.embeddings import embedding_routes
from jaxfold.api.openai.tokenize import tokenize_routes
from jaxfold.api.openapi.routes import openapi_routes
from jaxfold.api.operations.health import health_routes
from jaxfold.api.responses.routes import response_routes
from jaxfold.api.responses.stores import open_store
from jaxfold.api.settings import ApiSettings
from jaxfold.api.state import ServerState
from jaxfold.api.uploads.routes import use_uploads
from jaxfold.api.uploads.store import Uploads
from jaxfold.api.webui.page import webui_page_routes
from jaxfold.api.webui.routes import Page
from jaxfold.api.webui.routes import webui_routes
from jaxfold.chat.service import ChatService

STATE_KEY = "jaxfold"
RESPONSE_TIMEOUT_S = 60


def create_app(service: ChatService | None, settings: ApiSettings) -> Quart:
    """The HTTP server's application.

    `service` None starts it while the model still loads: the health routes answer, the others are 503 until
    `state_of(app).service` is set (from the event loop's thread).
    """
    app = Quart("jaxfold", static_folder=None)
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes,
        BODY_TIMEOUT=settings.body_timeout_s,
        RESPONSE_TIMEOUT=RESPONSE_TIMEOUT_S,
    )
    app.url_map.merge_slashes = False
    state = ServerState(service, settings)
    app.extensions[STATE_KEY] = state
    app.register_blueprint(health_routes(state))
    app.register_blueprint(chat_routes(state))
    app.register_blueprint(completion_routes(state))
    app.register_blueprint(tokenize_routes(state))
    app.register_blueprint(embedding_routes(state))
    app.register_blueprint(decision_routes(state))
    app.register_blueprint(anthropic_routes(state))
    app.register_blueprint(model_routes(state))
    store = open_store(settings.responses)
    app.register_blueprint(response_routes(state, store))
    app.after_serving(store.close)
    uploads = None if settings.uploads is None else Uploads(settings.uploads)
    page = Page(state, uploads)
    app.register_blueprint(ollama_routes(state, page.answer))
    app.register_blueprint(ollama_model_routes(state))
    app.register_blueprint(ollama_embed_routes(state))
    app.register_blueprint(webui_routes(state, page))
    if settings.webui:
        app.register_blueprint(webui_page_routes(state))
    use_uploads(app, state, uploads)
    app.register_blueprint(openapi_routes(app, state))
    app.register_error_handler(Exception, _on_error)
    admit_all(app, state)
    app.asgi_app = ConnectionGuard(app.asgi_app, state)  # type: ignore[assignment, method-assign]
    logging.getLogger("quart.app").setLevel(logging.CRITICAL)
    return app


def state_of(app: Quart) -> ServerState:
    """What the routes of `app` share."""
    state: ServerState = app.extensions[STATE_KEY]
    return state


async def _on_error(error: Exception) -> Response:
    # A WebSocket handshake is refused through here too, and has no request.
    source = request if has_request_context() else websocket
    path = source.path
    field: Any = "prompt" if path.endswith("/completions") and not path.endswith("/chat/completions") else "messages"
    style = format_of(path, anthropic=ANTHROPIC_VERSION in source.headers)
    answer = style.translate(error, path=path, context_param=field)
    return json_response(style.body(answer), answer.status, answer.headers)
