"""POST /tokenize and /detokenize and GET /tokenizer_info, as vLLM has them.

A conversation is tokenised by the same steps as a chat request with the same fields, so the ids are those that the
chat route runs.
"""

import asyncio
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.exchange.rendering import read_model
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.known_fields import check_known_fields
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import read_object
from jaxfold.api.openai.chat import read_chat
from jaxfold.api.state import ServerState
from jaxfold.chat.service import ChatService
from jaxfold.chat.types import RequestError
from jaxfold.tokenizers.base import Tokenizer

MAX_CHARS = 1 << 22
"""Longest text to tokenise, in characters. Its ids need not fit the model's window."""
MAX_TOKENS = 1 << 20
"""Most ids to turn into text at once."""
OWN_FIELDS = frozenset({"prompt", "messages", "add_special_tokens", "add_generation_prompt", "return_token_strs"})
NEITHER = "/tokenize takes a JSON body with messages or prompt"


def tokenize_routes(state: ServerState) -> Blueprint:
    """The three routes, each with and without /v1."""
    routes = Blueprint("tokenize", __name__)

    @routes.post("/tokenize")
    @routes.post("/v1/tokenize")
    async def tokenize() -> Response:
        service = state.require_service()
        body, _ = await read_object(request)
        read_model(body, state.settings)
        with_texts = boolean(body, "return_token_strs")
        ids = await _ids(body, state, service)
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": service.engine.info.context_length,
            "tokens": ids,
        }
        if with_texts:
            answer["token_strs"] = await asyncio.to_thread(token_texts, service.tokenizer, ids)
        return json_response(answer)

    @routes.post("/detokenize")
    @routes.post("/v1/detokenize")
    async def detokenize() -> Response:
        service = state.require_service()
        body, _ = await read_object(request)
        read_model(body, state.settings)
        return json_response({"prompt": await service.detokenize(read_tokens(body))})

    @routes.get("/tokenizer_info")
    @routes.get("/v1/tokenizer_info")
    async def tokenizer_info() -> Response:
        return json_response(describe(state.require_service()))

    return routes


async def _ids(body: Body, state: ServerState, service: ChatService) -> Sequence[int]:
    """The ids of a body's prompt or messages.

    Raises:
        RequestError: 400 with the path of what is wrong.
    """
    prompt, messages = body.get("prompt"), body.get("messages")
    if prompt is None and messages is None:
        raise RequestError(NEITHER)
    if prompt is not None and messages is not None:
        raise RequestError("prompt and messages are two ways to say one thing: send one", param="prompt")
    others = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    if messages is None:
        check_known_fields(others, "completions")
        if not isinstance(prompt, str):
            raise RequestError("prompt must be a string", param="prompt")
        if len(prompt) > MAX_CHARS:
            raise RequestError(f"prompt may have at most {MAX_CHARS} characters", param="prompt")
        return await service.tokenize_text(prompt, add_special_tokens=boolean(body, "add_special_tokens", True))
    check_known_fields(others, "chat")
    if boolean(body, "add_special_tokens"):
        param = "add_special_tokens"
        raise RequestError(f"{param} is for prompt only: the chat template writes what messages need", param=param)
    ask = read_chat(body, state.settings, service.template, service.engine.info.vocab_size)
    return await service.tokenize_chat(ask, add_generation_prompt=boolean(body, "add_generation_prompt", True))


def read_tokens(body: Body) -> list[int]:
    """The ids in `tokens`; whether the vocabulary has them is for the service to see."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list):
        raise RequestError("/detokenize takes a JSON body with tokens, a list of token ids", param="tokens")
    if len(tokens) > MAX_TOKENS:
        raise RequestError(f"tokens may hold at most {MAX_TOKENS} ids", param="tokens")
    for at, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise RequestError(f"tokens[{at}] must be an integer", param=f"tokens[{at}]")
    return tokens


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each id by itself; bytes that are no whole character show as U+FFFD."""
    texts = {token: tokenizer.token_bytes(token).decode(errors="replace") for token in set(ids)}
    return [texts[token] for token in ids]


def describe(service: ChatService) -> Mapping[str, Any]:
    """What evaluation harnesses ask about a tokenizer: its special tokens and the chat template."""
    tokenizer, template = service.tokenizer, service.template
    special = {name: text or None for name, text in template.special.items()}
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": service.engine.info.context_length,
        "add_bos_token": tokenizer.add_bos,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token")),
        **special,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_ids": sorted(tokenizer.eos_ids),
        "chat_template": template.source,
    }
