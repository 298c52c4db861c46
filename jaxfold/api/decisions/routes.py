"""POST .../decisions: choices, scores and yes or no as probabilities of the next token. No text is generated."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.decisions.questions import Question
from jaxfold.api.decisions.questions import keyed_answer
from jaxfold.api.decisions.questions import listed_answer
from jaxfold.api.decisions.questions import probabilities
from jaxfold.api.decisions.questions import read_questions
from jaxfold.api.decisions.questions import said
from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.exchange.rendering import read_model
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import string
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import read_object
from jaxfold.api.responses.items import read_input
from jaxfold.api.state import ServerState
from jaxfold.chat.labels import LabelPrompt
from jaxfold.chat.labels import LabelScore
from jaxfold.chat.labels import prepare_labels
from jaxfold.chat.labels import start_labels
from jaxfold.chat.service import ChatService
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError

FORMAT_VERSION = 1
FIELDS = frozenset(
    {
        "input", "questions", "temperature", "chat_template_kwargs", "prompt_format_version",
        "return_prompt_token_ids", "model",
    }
)  # fmt: skip
# What OpenAI's client may send beside them. Prompts are reused by what they say.
LISTED_FIELDS = frozenset({"prompt_cache_key", "prompt_cache_options", "safety_identifier"})


def decision_routes(state: ServerState) -> Blueprint:
    """The route, with any prefix or none."""
    routes = Blueprint("decisions", __name__)

    @routes.post("/decisions")
    @routes.post("/<path:prefix>/decisions")
    async def decisions(prefix: str = "") -> Response:
        service = state.require_service()
        body, _ = await read_object(request)
        questions = read_questions(body.get("questions"))
        temperature = _check(body, keyed=questions[0].keyed)
        model = read_model(body, state.settings)
        with_ids = boolean(body, "return_prompt_token_ids")
        asked = [_messages(body, question) for question in questions]
        prompts = await service.in_pool(lambda: _prepare(service, questions, asked))
        scores = await _score(service, prompts)
        write = _keyed_reply if questions[0].keyed else _listed_reply
        return json_response({"model": model} | write(questions, prompts, scores, temperature, with_ids))

    return routes


def _check(body: Body, *, keyed: bool) -> float:
    """Refuse what the route does not know; the temperature.

    Raises:
        RequestError: 400 with the field.
    """
    for name in body:
        if name not in FIELDS and (keyed or name not in LISTED_FIELDS):
            raise RequestError(f"unknown field {name!r}", name)
    version = body.get("prompt_format_version")
    if version is not None and (isinstance(version, bool) or version != FORMAT_VERSION):
        raise RequestError(f"prompt_format_version must be {FORMAT_VERSION} or null", "prompt_format_version")
    kwargs = body.get("chat_template_kwargs")
    alone = isinstance(kwargs, dict) and set(kwargs) <= {"enable_thinking"}
    if kwargs is not None and not (alone and kwargs.get("enable_thinking", False) is False):
        name = "chat_template_kwargs"
        raise RequestError(f"{name} may hold nothing but enable_thinking: false", name)
    for name in ("prompt_cache_key", "safety_identifier"):
        string(body, name)
    mapping(body, "prompt_cache_options")
    value = body.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise RequestError("temperature must be a number above 0, or null", "temperature")
    return float(value)


def _messages(body: Body, question: Question) -> tuple[Message, ...]:
    """The conversation that asks one question: the input and it in one turn, or the input's own turns before it."""
    raw = body.get("input")
    lines = "\n".join(question.lines)
    if not question.keyed and isinstance(raw, list):
        return (*read_input(body), Message("user", lines))
    return (Message("user", f"{said(raw, 'input')}\n\n{lines}"),)


def _prepare(
    service: ChatService, questions: Sequence[Question], asked: Sequence[tuple[Message, ...]]
) -> list[LabelPrompt]:
    prompts = []
    for question, messages in zip(questions, asked, strict=True):
        try:
            prompts.append(prepare_labels(service, messages, question.labels))
        except RequestError as error:
            if error.param is not None:
                raise
            where = f"question {question.name!r}" if question.keyed else question.path
            raise RequestError(f"{where}: {error.message}", question.path) from error
    return prompts


async def _score(service: ChatService, prompts: Sequence[LabelPrompt]) -> list[LabelScore]:
    """The first prompt, then all others together: they find what they have in common in the prefix cache."""
    exchange = exchange_of(request.scope)
    first = start_labels(service, prompts[0])
    exchange.adopt(first)
    scores = [await first.score()]
    others = [start_labels(service, prompt, accepted=True) for prompt in prompts[1:]]
    for reply in others:
        exchange.adopt(reply)
    return scores + list(await asyncio.gather(*(reply.score() for reply in others)))


def _keyed_reply(
    questions: Sequence[Question],
    prompts: Sequence[LabelPrompt],
    scores: Sequence[LabelScore],
    temperature: float,
    with_ids: bool,
) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for question, prompt, score in zip(questions, prompts, scores, strict=True):
        answer = keyed_answer(question, *probabilities(score.logprobs, temperature))
        answers[question.name or ""] = answer | _ids(prompt, with_ids)
    tokens = sum(len(prompt.prompt_ids) for prompt in prompts)
    return {
        "object": "decisions",
        "prompt_format_version": FORMAT_VERSION,
        "answers": answers,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    }


def _listed_reply(
    questions: Sequence[Question],
    prompts: Sequence[LabelPrompt],
    scores: Sequence[LabelScore],
    temperature: float,
    with_ids: bool,
) -> dict[str, Any]:
    answers = [
        listed_answer(question, probabilities(score.logprobs, temperature)[0]) | _ids(prompt, with_ids)
        for question, prompt, score in zip(questions, prompts, scores, strict=True)
    ]
    tokens = sum(len(prompt.prompt_ids) for prompt in prompts)
    cached = sum(score.stats.cached_tokens for score in scores)
    return {
        "answers": answers,
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
    }


def _ids(prompt: LabelPrompt, wanted: bool) -> dict[str, Any]:
    if not wanted:
        return {}
    return {"prompt_token_ids": list(prompt.prompt_ids), "label_token_ids": list(prompt.label_ids)}
