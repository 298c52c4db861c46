"""Scoring of labels: how likely each of a few tokens is to come next. Nothing is generated."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jaxfold.chat.prepared import too_long
from jaxfold.chat.reply import FAILED_MESSAGE
from jaxfold.chat.reply import Inbox
from jaxfold.chat.service import ChatService
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Failed
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import LabelScores
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import SamplingParams
from jaxfold.tokenizers.base import TokenizerError


@dataclass(frozen=True, slots=True)
class LabelPrompt:
    """A prompt whose next token is asked for, and the token of each label."""

    prompt_ids: tuple[int, ...]
    label_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Log-probabilities of the labels over the whole vocabulary, in order."""

    logprobs: tuple[float, ...]
    stats: RequestStats


class LabelReply:
    """A prompt that the engine scores."""

    def __init__(self, request_id: str, engine: Engine, inbox: Inbox) -> None:
        self._request_id = request_id
        self._engine = engine
        self._inbox = inbox
        self._ended = False

    def cancel(self) -> None:
        """End the request."""
        if not self._ended:
            self._engine.cancel(self._request_id)

    async def score(self) -> LabelScore:
        """Wait for the scores.

        Raises:
            GenerationError: the engine failed, or the request was cancelled.
        """
        logprobs: tuple[float, ...] = ()
        while True:
            for event in self._inbox.take():
                match event:
                    case LabelScores():
                        logprobs = event.logprobs
                    case Finished() if event.reason != "cancelled":
                        self._ended = True
                        return LabelScore(logprobs, event.stats)
                    case Finished() | Failed():
                        self._ended = True
                        raise GenerationError(FAILED_MESSAGE)
            await self._inbox.wait()


def prepare_labels(service: ChatService, messages: tuple[Message, ...], labels: Sequence[str]) -> LabelPrompt:
    """The prompt of a conversation whose answer is one of the labels, with reasoning off.

    Raises:
        RequestError: it does not fit, or a label is not one token of its own after the prompt.
    """
    rendered = service.rendered(ChatRequest(messages, enable_thinking=False))
    if service.template.opens_reasoning(rendered.text):
        raise RequestError("the model's reasoning cannot be turned off, so that no label can follow the prompt")
    ids = service.chat_ids(rendered)
    context = service.engine.info.context_length
    if len(ids) >= context:
        raise too_long(context, len(ids), "input")
    tokens: list[int] = []
    for label in labels:
        try:
            longer = service.tokenizer.encode_rendered(rendered.text + label, rendered.literals)
        except TokenizerError as error:
            raise RequestError(f"the label {label!r} cannot be tokenised: {error}") from error
        if longer[:-1] != ids or longer[-1] in tokens:
            raise RequestError(f"the label {label!r} is not one token of its own after the prompt")
        tokens.append(longer[-1])
    return LabelPrompt(tuple(ids), tuple(tokens))


def start_labels(service: ChatService, prompt: LabelPrompt, *, accepted: bool = False) -> LabelReply:
    """Hand a prompt to the engine; `accepted` as in `ChatService.start`.

    Raises:
        QueueFullError, NotReadyError: the engine takes no request now.
        RequestError: the engine can never hold this prompt.
    """
    request_id = f"req-{uuid.uuid4().hex[:12]}"
    inbox = Inbox(lambda _: 0, 16, 1, partial(service.engine.cancel, request_id))
    request = EngineRequest(
        request_id=request_id,
        prompt_ids=prompt.prompt_ids,
        max_tokens=0,
        sampling=SamplingParams(temperature=0.0),
        labels=prompt.label_ids,
        accepted=accepted,
    )
    try:
        service.engine.submit(request, inbox.put)
    except CapacityError as error:
        raise RequestError(str(error), "input", "context_length_exceeded") from error
    return LabelReply(request_id, service.engine, inbox)
