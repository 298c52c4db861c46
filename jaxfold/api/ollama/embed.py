"""POST /api/embed and /api/embeddings: Ollama's two forms of embeddings."""

import asyncio
import time

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.embedding_service import MAX_INPUTS
from jaxfold.api.embedding_service import EmbeddingService
from jaxfold.api.embedding_service import Inputs
from jaxfold.api.embedding_service import Vectors
from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import printable
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import dumps
from jaxfold.api.http.wire import json_response
from jaxfold.api.ollama.wire import nanoseconds
from jaxfold.api.openai.embeddings import number_list
from jaxfold.api.openai.embeddings import read_limited
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import hosts
from jaxfold.api.state import ServerState
from jaxfold.chat.types import RequestError


def ollama_embed_routes(state: ServerState) -> Blueprint:
    """Both routes. `options` and `keep_alive` are checked and change nothing: an encoder has no settings."""
    routes = Blueprint("ollama_embed", __name__)

    @routes.post("/api/embed")
    async def embed() -> Response:
        begun = time.perf_counter()
        service, body = await _receive(state)
        texts = read_texts(body)
        model, truncate = str(body["model"]), boolean(body, "truncate", default=True)
        vectors = await _vectors(service, texts, integer(body, "dimensions", low=1), truncate)
        text = "" if vectors is None else await asyncio.to_thread(_rows, vectors)
        tail = dumps(
            {
                "total_duration": nanoseconds(time.perf_counter() - begun),
                "load_duration": 0,
                "prompt_eval_count": 0 if vectors is None else vectors.tokens,
            }
        )
        answer = f'{{"model":{dumps(model)},"embeddings":[{text}],{tail[1:]}'
        return Response(answer, 200, {"Content-Type": "application/json"})

    @routes.post("/api/embeddings")
    async def embeddings() -> Response:
        service, body = await _receive(state)
        prompt = string(body, "prompt")
        vectors = await _vectors(service, [prompt] if prompt else [], None, truncate=True)
        if vectors is None:
            return json_response({"embedding": []})
        return Response(f'{{"embedding":{number_list(vectors.values[0])}}}', 200, {"Content-Type": "application/json"})

    return routes


def _rows(vectors: Vectors) -> str:
    return ",".join(map(number_list, vectors.values))


async def _receive(state: ServerState) -> tuple[EmbeddingService, Body]:
    service = state.require_encoder()
    body, _ = await read_limited(request, any_type=True)
    require_encoder_name(body, state.settings)
    mapping(body, "options")
    keep = body.get("keep_alive")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int | float | str)):
        raise RequestError("keep_alive must be a duration or a number of seconds", "keep_alive")
    return service, body


def require_encoder_name(body: Body, settings: ApiSettings) -> None:
    """Refuse a body that does not name the encoder.

    Raises:
        ApiError: 400 for a missing name and for the chat model's, 404 for a model that is not served.
    """
    name = string(body, "model")
    if not name:
        raise ApiError(400, "model is required", param="model")
    if hosts(name, settings.encoder_ids, settings.encoder_file):
        return
    if settings.serves_chat and hosts(name, settings.model_ids, settings.model_file):
        raise ApiError(400, f"model '{printable(name)}' does not support embeddings", param="model")
    served = ", ".join(settings.encoder_ids)
    raise ApiError(404, f"model '{printable(name)}' is not hosted by this server, which serves {served}")


def read_texts(body: Body) -> list[str]:
    """`input`: a text or a list of texts; nothing where it is empty, which only asks for the model to be loaded.

    Raises:
        RequestError: something else, or more texts than one request takes.
    """
    value = body.get("input")
    if value is None or value == "":
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise RequestError("input must be a string or a list of strings", "input")
    if len(texts) > MAX_INPUTS:
        raise RequestError(f"input has {len(texts)} entries; one request takes {MAX_INPUTS}", "input")
    return texts


async def _vectors(
    service: EmbeddingService, texts: list[str], dimensions: int | None, truncate: bool
) -> Vectors | None:
    if not texts:
        return None
    adopt = exchange_of(request.scope).adopt
    return await service.embed(Inputs("input", texts=texts), adopt, dimensions=dimensions, truncate=truncate)
