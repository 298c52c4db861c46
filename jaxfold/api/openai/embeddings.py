"""POST .../embeddings: OpenAI's embeddings."""

import asyncio
import base64
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from quart import Blueprint
from quart import Request
from quart import Response
from quart import request

from jaxfold.api.embedding_service import MAX_INPUTS
from jaxfold.api.embedding_service import Inputs
from jaxfold.api.embedding_service import Vectors
from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import model_not_found
from jaxfold.api.http.errors import printable
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import integer
from jaxfold.api.http.fields import string
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import check_fields
from jaxfold.api.http.wire import dumps
from jaxfold.api.http.wire import read_object
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import hosts
from jaxfold.api.state import ServerState
from jaxfold.chat.types import RequestError

MAX_BODY_BYTES = 16 << 20
FORMATS = ("float", "base64")
SUPPORTED = frozenset({"model", "input", "encoding_format", "dimensions"})
REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "stream": (False,),
        "truncate_prompt_tokens": (),
        "add_special_tokens": (True,),
        "normalize": (True,),
        "messages": (),
    }
)
"""What other servers' embeddings know and this one does not do; the listed values ask for nothing."""
LARGE_REPLY = 1 << 15
"""Numbers from which a reply is written in a thread."""


def embedding_routes(state: ServerState) -> Blueprint:
    """The route, with any prefix or none."""
    routes = Blueprint("embeddings", __name__)

    @routes.post("/embeddings")
    @routes.post("/<path:prefix>/embeddings")
    async def embeddings(prefix: str = "") -> Response:
        service = state.require_encoder()
        body, _ = await read_limited(request)
        check_fields(body, REFUSED, INERT)
        model = read_encoder_model(body, state.settings)
        encoding = string(body, "encoding_format") or "float"
        if encoding not in FORMATS:
            raise RequestError('encoding_format must be "float" or "base64"', "encoding_format")
        dimensions = integer(body, "dimensions", low=1)
        inputs = read_inputs(body)
        exchange = exchange_of(request.scope)
        vectors = await service.embed(inputs, exchange.adopt, dimensions=dimensions, truncate=False)
        if vectors.values.size < LARGE_REPLY:
            text = reply_text(vectors, model, encoding)
        else:
            text = await asyncio.to_thread(reply_text, vectors, model, encoding)
        return Response(text, 200, {"Content-Type": "application/json"})

    return routes


async def read_limited(request: Request, *, any_type: bool = False) -> tuple[dict[str, Any], int]:
    """The body of a request to an encoder: as `read_object`, with a limit of its own.

    Raises:
        ApiError: 413 above 16 MiB; at once where the request says how long it is.
    """
    too_large = ApiError(
        413, f"the request body exceeds the limit of {MAX_BODY_BYTES >> 20} MiB", code="request_too_large"
    )
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    body, size = await read_object(request, any_type=any_type)
    if size > MAX_BODY_BYTES:
        raise too_large
    return body, size


def read_encoder_model(body: Body, settings: ApiSettings) -> str:
    """The id that the reply names: the one asked for where the encoder is served under it, else the encoder's own.

    Raises:
        ApiError: 400 for the chat model's id, 404 for another one if the server is strict about it.
    """
    asked = string(body, "model")
    if asked is None or hosts(asked, settings.encoder_ids, settings.encoder_file):
        return asked or settings.encoder_ids[0]
    if settings.serves_chat and hosts(asked, settings.model_ids, settings.model_file):
        # Served, and not for this: another model's vectors would be taken for its own.
        message = f"{printable(asked)} is a chat model; the encoder here is {settings.encoder_ids[0]}"
        raise ApiError(400, message, param="model", code="embeddings_not_supported")
    if settings.strict_model:
        raise model_not_found(asked)
    return settings.encoder_ids[0]


def read_inputs(body: Body) -> Inputs:
    """`input`: a text, a list of texts, a list of token ids, or a list of such lists.

    Raises:
        RequestError: missing, empty, of mixed kinds, or more inputs than one request takes.
    """
    value = body.get("input")
    if isinstance(value, str):
        if not value:
            raise RequestError("input must not be empty", "input")
        return Inputs("input", texts=(value,), single=True)
    if not isinstance(value, list):
        raise RequestError("input must be a string, a list of strings, or one or more lists of token ids", "input")
    if not value:
        raise RequestError("input must not be empty", "input")
    if _are_ids(value):
        return Inputs("input", ids=(value,), single=True)
    if len(value) > MAX_INPUTS:
        raise RequestError(f"input has {len(value)} entries; one request takes {MAX_INPUTS}", "input")
    texts = all(isinstance(one, str) for one in value)
    if not texts and not all(isinstance(one, list) and _are_ids(one) for one in value):
        raise RequestError("input must hold only strings, only token ids, or only lists of token ids", "input")
    for index, one in enumerate(value):
        if not one:
            raise RequestError(f"input[{index}] must not be empty", f"input[{index}]")
    return Inputs("input", texts=value) if texts else Inputs("input", ids=value)


def _are_ids(value: Sequence[Any]) -> bool:
    return all(type(one) is int for one in value)


def reply_text(vectors: Vectors, model: str, encoding: str) -> str:
    """The answer as JSON text."""
    write = _base64 if encoding == "base64" else number_list
    items = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{write(row)}}}' for index, row in enumerate(vectors.values)
    )
    usage = {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens}
    stats = {"queue_s": round(vectors.queue_s, 6), "run_s": round(vectors.run_s, 6)}
    tail = dumps({"model": model, "usage": usage, "jaxfold": stats})
    return f'{{"object":"list","data":[{items}],{tail[1:]}'


def number_list(row: np.ndarray) -> str:
    """A JSON list of float32 numbers, each in the nine digits that bring it back exactly."""
    return f"[{','.join(f'{number:.9g}' for number in row.tolist())}]"


def _base64(row: np.ndarray) -> str:
    """Little-endian float32."""
    return f'"{base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")}"'
