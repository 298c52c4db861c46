"""POST .../completions: raw text or token ids to continue, without a template. Each prompt is one choice."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quart import Blueprint
from quart import Response

from jaxfold.api.exchange.incoming import receive
from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import integer
from jaxfold.api.http.wire import dumps
from jaxfold.api.openai.logprobs import CompletionLogprobs
from jaxfold.api.openai.logprobs import read_completion_logprobs
from jaxfold.api.openai.sampling import check_single_choice
from jaxfold.api.openai.sampling import read_background
from jaxfold.api.openai.sampling import read_cache_salt
from jaxfold.api.openai.sampling import read_limits
from jaxfold.api.openai.sampling import read_sampling
from jaxfold.api.openai.structured import read_constraint
from jaxfold.api.settings import ApiSettings
from jaxfold.api.state import ServerState
from jaxfold.chat.prepared import too_long
from jaxfold.chat.reply import Collected
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import Logprob
from jaxfold.chat.types import Piece
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import TextDelta

MAX_PROMPTS = 128


class CompletionStyle:
    """OpenAI's completion objects: the same kind whole and streamed.

    `logprobs` has a writer of log-probabilities for each choice where they were asked for.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, logprobs: Sequence[CompletionLogprobs]) -> None:
        self._logprobs = logprobs

    def opening(self, index: int) -> str | None:
        return None

    def delta(self, index: int, piece: Piece) -> str | None:
        if not isinstance(piece, TextDelta):
            return None
        logprobs = dumps(self._write(index, piece.logprobs))
        return f'{{"index":{index},"text":{dumps(piece.text)},"logprobs":{logprobs},"finish_reason":null}}'

    def ending(self, index: int, reason: str) -> str:
        return f'{{"index":{index},"text":"","logprobs":null,"finish_reason":"{reason}"}}'

    def choice(self, index: int, whole: Collected) -> Mapping[str, Any]:
        logprobs = self._write(index, whole.logprobs)
        return {"index": index, "text": whole.text, "logprobs": logprobs, "finish_reason": whole.finish.reason}

    def _write(self, index: int, tokens: Sequence[Logprob]) -> dict[str, Any] | None:
        return self._logprobs[index].write(tokens) if self._logprobs else None


def completion_routes(state: ServerState) -> Blueprint:
    """POST of any path that ends in /completions and not in /chat/completions."""
    routes = Blueprint("completions", __name__)

    @routes.post("/completions")
    @routes.post("/<path:prefix>/completions")
    async def completions(prefix: str = "") -> Response:
        call = await receive(state, "completions")
        service = call.service
        vocab, context = service.engine.info.vocab_size, service.engine.info.context_length
        asks = await call.read(lambda: read_completions(call.body, state.settings, vocab, context))
        prepared = [await service.prepare_completion(ask) for ask in asks]
        scored = [ask for ask in asks if ask.logprobs is not None]
        style = CompletionStyle([CompletionLogprobs(service.tokenizer) for _ in scored])
        return await call.answer(style, "cmpl", prepared)

    return routes


def read_completions(
    body: Body, settings: ApiSettings, vocab_size: int, context_length: int
) -> Sequence[CompletionRequest]:
    """One request for each prompt of a body whose fields are known to be supported.

    Raises:
        RequestError: 400 with the path of the first field that is wrong.
    """
    check_single_choice(body)
    prompts = read_prompts(body, vocab_size, context_length)
    sampling = read_sampling(body, settings.default_sampling, vocab_size)
    limits = read_limits(body, "max_tokens")
    echo = boolean(body, "echo")
    if echo and integer(body, "max_tokens") == 0:
        limits = replace(limits, max_tokens=0)  # the prompt alone, for its log-probabilities
    special = boolean(body, "add_special_tokens")
    background = read_background(body)
    draft = boolean(body, "draft", default=True)
    salt = read_cache_salt(body)
    logprobs = read_completion_logprobs(body)
    constraint = read_constraint(body)
    return [
        CompletionRequest(prompt, sampling, limits, special, background, draft, salt, logprobs, echo, constraint)
        for prompt in prompts
    ]


def read_prompts(body: Body, vocab_size: int, context_length: int) -> Sequence[str | tuple[int, ...]]:
    """The prompts of a completion: one string, a list of strings, one list of token ids, or a list of such lists."""
    raw = body.get("prompt")
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not raw:
        raise RequestError("prompt must be a string, or a non-empty list of strings or token ids", param="prompt")
    # The first item tells which form it is, and each form has a length that needs no look at every item.
    if _is_id(raw[0]):
        return [_ids(raw, vocab_size, context_length, "prompt")]
    if len(raw) > MAX_PROMPTS:
        raise RequestError(f"prompt may hold at most {MAX_PROMPTS} prompts", param="prompt")
    if all(isinstance(item, str) for item in raw):
        return list(raw)
    if all(isinstance(item, list) for item in raw):
        return [_ids(item, vocab_size, context_length, f"prompt[{index}]") for index, item in enumerate(raw)]
    raise RequestError("prompt must not mix strings, token ids and lists", param="prompt")


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _ids(raw: list[Any], vocab_size: int, context_length: int, path: str) -> tuple[int, ...]:
    if not raw:
        raise RequestError(f"{path} holds no token ids", param=path)
    if len(raw) >= context_length:
        raise too_long(context_length, len(raw), path)
    if not all(_is_id(item) and 0 <= item < vocab_size for item in raw):
        raise RequestError(f"{path} must hold token ids between 0 and {vocab_size - 1}", param=path)
    return tuple(raw)
