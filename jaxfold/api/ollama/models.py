"""What Ollama's clients ask about the served model, and the routes that would change which models there are."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import printable
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import read_object
from jaxfold.api.http.wire import timestamp
from jaxfold.api.ollama.encoder import FOREVER
from jaxfold.api.ollama.encoder import running_encoder
from jaxfold.api.ollama.encoder import shown_encoder
from jaxfold.api.ollama.wire import line
from jaxfold.api.ollama.wire import ndjson_response
from jaxfold.api.openai.embeddings import read_limited
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import ModelFile
from jaxfold.api.settings import Puller
from jaxfold.api.settings import hosts
from jaxfold.api.state import ServerState
from jaxfold.chat.types import RequestError

PROTOCOL_LEVEL = "0.13.4"
"""The version of Ollama whose protocol these routes speak. Clients look at it before they use what is newer."""
UNSUPPORTED = (
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("POST", "/api/push"),
    ("DELETE", "/api/delete"),
    ("HEAD", "/api/blobs/<digest>"),
    ("POST", "/api/blobs/<digest>"),
)

logger = logging.getLogger("jaxfold.api")


def ollama_model_routes(state: ServerState) -> Blueprint:
    """GET /api/version, /api/tags, /api/ps; POST /api/show, /api/pull; 501 for what makes and moves models."""
    routes = Blueprint("ollama_models", __name__)

    @routes.get("/api/version")
    async def version() -> Response:
        return json_response({"version": PROTOCOL_LEVEL})

    @routes.get("/api/tags")
    async def tags() -> Response:
        ids = state.settings.model_ids if state.service is not None else ()
        listed = [_listed(state, model_id) for model_id in ids]
        if state.encoder is not None:
            listed += [_listed(state, model_id, embeds=True) for model_id in state.settings.encoder_ids]
        return json_response({"models": listed})

    @routes.get("/api/ps")
    async def running() -> Response:
        models = [] if state.service is None else [_running(state)]
        if state.encoder is not None:
            models.append(running_encoder(state.encoder, _listed(state, state.settings.encoder_ids[0], embeds=True)))
        return json_response({"models": models})

    @routes.post("/api/show")
    async def show() -> Response:
        body, _ = await read_limited(request, any_type=True)
        if body.get("model") is None:
            # The name that the first versions of the protocol gave the field.
            body["model"] = body.get("name")
        settings, name = state.settings, string(body, "model") or ""
        if state.encoder is not None and hosts(name, settings.encoder_ids, settings.encoder_file):
            listed = _listed(state, settings.encoder_ids[0], embeds=True)
            return json_response(shown_encoder(state.encoder, settings.encoder_file, listed))
        require_hosted(body, settings)
        return json_response(_shown(state))

    @routes.post("/api/pull")
    async def pull() -> Response:
        body, _ = await read_object(request, any_type=True)
        return await _pull(body, state)

    async def unsupported(digest: str = "") -> Response:
        raise ApiError(501, f"{request.path} is not supported: this server serves the model that it was started with")

    for method, path in UNSUPPORTED:
        routes.add_url_rule(path, f"{method} {path}", unsupported, methods=[method])
    return routes


def require_hosted(body: Body, settings: ApiSettings) -> str:
    """The model that a body names, as it names it.

    Raises:
        ApiError: 404 for a model that is not served.
        RequestError, ApiError: 400 for a missing name.
    """
    name = string(body, "model")
    if not name:
        raise ApiError(400, "model is required", param="model")
    if not is_hosted(name, settings):
        if hosts(name, settings.encoder_ids, settings.encoder_file):
            raise ApiError(400, f"model '{printable(name)}' does not support generation", param="model")
        served = ", ".join(settings.all_ids)
        raise ApiError(404, f"model '{printable(name)}' is not hosted by this server, which serves {served}")
    return name


def is_hosted(name: str, settings: ApiSettings) -> bool:
    """Whether the chat model is called so."""
    return settings.serves_chat and hosts(name, settings.model_ids, settings.model_file)


def details(state: ServerState, *, embeds: bool = False) -> dict[str, Any]:
    """Ollama's description of the chat model's kind, or of the encoder's."""
    file = state.settings.encoder_file if embeds else state.settings.model_file
    engine = state.encoder_engine() if embeds else state.engine()
    family = "" if engine is None else engine.info.model_type
    return {
        "parent_model": "",
        "format": "" if file is None else file.format,
        "family": family,
        "families": [family],
        "parameter_size": "" if file is None else short_count(file.parameters),
        "quantization_level": "" if file is None else file.quantisation,
    }


def short_count(count: int) -> str:
    """134515008 -> "134.5M"."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def _listed(state: ServerState, model_id: str, *, embeds: bool = False) -> dict[str, Any]:
    """An entry of /api/tags. A file that is served under its own name is also called by it, as in its folder."""
    file = state.settings.encoder_file if embeds else state.settings.model_file
    model = model_id
    if file is not None and model_id == file.path.stem:
        model = file.path.name
    return {
        "name": model_id,
        "model": model,
        "modified_at": timestamp(state.created if file is None else file.modified),
        "size": 0 if file is None else file.size,
        "digest": _digest(state.settings.encoder_ids[0] if embeds else state.settings.model, file),
        "details": details(state, embeds=embeds),
        **({"capabilities": ["embedding"]} if embeds else {}),
    }


def _running(state: ServerState) -> dict[str, Any]:
    engine = state.engine()
    info = None if engine is None else engine.info
    memory = 0 if info is None else info.weight_bytes + info.cache_bytes
    return _listed(state, state.settings.model) | {
        "expires_at": FOREVER,
        "size": memory,
        "size_vram": 0 if info is None or info.platform == "cpu" else memory,
        "context_length": 0 if info is None else info.context_length,
    }


def _shown(state: ServerState) -> dict[str, Any]:
    service = state.require_service()
    info, template, file = service.engine.info, service.template, state.settings.model_file
    capabilities = ["completion"]
    capabilities += ["tools"] if template.supports_tools else []
    capabilities += ["thinking"] if template.supports_thinking or template.markers else []
    facts: dict[str, Any] = {
        "general.architecture": info.model_type,
        f"{info.model_type}.context_length": info.context_length,
    }
    if file is not None:
        facts |= {"general.parameter_count": file.parameters, "file": file.path.name, "size": file.size}
    return {
        "modelfile": "",
        "parameters": "",
        "template": template.source or "",
        "details": details(state),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": timestamp(state.created if file is None else file.modified),
    }


def _digest(model: str, file: ModelFile | None) -> str:
    """Tells one state of the file from another by its name, size and time; hashing gigabytes would take too long."""
    text = model if file is None else f"{file.path.name}|{file.size}|{file.modified}"
    return hashlib.sha256(text.encode()).hexdigest()


async def _pull(body: Body, state: ServerState) -> Response:
    """Fetch a model of the catalogue, as a stream of steps or one answer."""
    puller = state.settings.puller
    if puller is None:
        raise ApiError(403, "pulling models is off: start the server with --allow-pull, or run jaxfold pull")
    name = string(body, "model") or string(body, "name")
    if not name:
        raise ApiError(400, "model is required", param="model")
    if boolean(body, "insecure"):
        raise ApiError(400, "insecure is not supported: models come from the catalogue only", param="insecure")
    steps = _steps(puller, name)
    first = await anext(steps)
    if "error" in first:
        raise ApiError(404, first["error"])
    if boolean(body, "stream", default=True):
        return ndjson_response(_lines(first, steps))
    last = [first, *[step async for step in steps]][-1]
    if "error" in last:
        raise ApiError(500, last["error"])
    return json_response(last)


async def _lines(first: dict[str, Any], steps: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    yield line(first)
    async for step in steps:
        yield line(step)


async def _steps(puller: Puller, name: str) -> AsyncIterator[dict[str, Any]]:
    """Each step of the puller, which runs in a thread, then {"status": "success"} or {"error": ...}."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def put(step: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, step)

    def work() -> None:
        try:
            puller(name, lambda text: put({"status": text}))
            put({"status": "success"})
        except RequestError as error:
            put({"error": error.message})
        except Exception as error:
            logger.error("pulling %s failed", printable(name), exc_info=error)
            put({"error": "the model could not be fetched: see the server's log"})

    task = asyncio.get_running_loop().run_in_executor(None, work)
    while True:
        step = await queue.get()
        yield step
        if "error" in step or step["status"] == "success":
            break
    await task
