"""From another protocol's request to the canonical one, by way of the chat fields that ask for the same.

A protocol module reads its own fields, says which chat fields they are, and what those are called in it. Everything
that is checked, refused or enforced for a chat is so for the other protocols too, under their names.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.http.fields import Body
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import REFUSED
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.http.known_fields import check_fields
from jaxfold.api.http.known_fields import check_known_fields
from jaxfold.api.openai.chat import read_chat
from jaxfold.api.openai.messages import TITLE_CHARS
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import ContextLengthError
from jaxfold.chat.types import Message
from jaxfold.chat.types import Overflow
from jaxfold.chat.types import RequestError

PASSED = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repeat_penalty",
        "repetition_penalty", "repeat_last_n", "logit_bias", "ignore_eos", "priority", "draft", "cache_salt",
        "chat_template_kwargs", "think", "enable_thinking",
    }
)  # fmt: skip
"""Fields that mean on every chat route what they mean in a chat."""


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What a protocol does with the fields of a body, as `known_fields` does for the chat routes.

    A field that only another route of this server knows is refused, so that nobody takes it for being heard.
    """

    supported: frozenset[str]
    inert: Mapping[str, tuple[type, ...]]
    refused: Mapping[str, tuple[Any, ...]]

    def check(self, body: Body) -> None:
        """Refuse what the route cannot do.

        Raises:
            RequestError: 400 with the first such field as `param`.
        """
        check_fields(body, self.refused, self.inert)
        known = self.supported.union(self.inert, self.refused)
        for name, value in body.items():
            if value is not None and name in ELSEWHERE and name not in known:
                raise RequestError(f"{name} is not a field of this route", param=name)


ELSEWHERE = frozenset().union(*SUPPORTED.values(), *REFUSED.values(), INERT)


@dataclass(frozen=True, slots=True)
class Translated:
    """A request as chat fields and messages.

    `names` maps chat paths to the protocol's own, for refusals; a longer path goes before a shorter one. `max_tokens`
    is the reply's limit where the request names none, `overflow` what becomes of one above the room; None for both is
    what a chat gets.
    """

    fields: Mapping[str, Any]
    messages: tuple[Message, ...]
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    max_tokens: int | None = None
    overflow: Overflow | None = None

    def request(self, call: Incoming) -> ChatRequest:
        """The canonical request.

        Raises:
            RequestError: 400 with the path of the first field that is wrong, in the protocol's own names.
        """
        service = call.service
        with self.renaming():
            check_known_fields(self.fields, "chat")
            vocab = service.engine.info.vocab_size
            request = read_chat(self.fields, call.state.settings, service.template, vocab, self.messages)
        limits = replace(request.limits, overflow=self.overflow)
        if limits.max_tokens is None and self.max_tokens is not None:
            limits = replace(limits, max_tokens=self.max_tokens, overflow="clamp")
        background = request.background or (not request.tools and is_title(self.messages))
        return replace(request, limits=limits, background=background)

    async def prepare(self, call: Incoming) -> Prepared:
        """The request, rendered and tokenised. Raises as `request` and `ChatService.prepare_chat`."""
        request = await call.read(lambda: self.request(call))
        with self.renaming():
            return await call.service.prepare_chat(request)

    @contextmanager
    def renaming(self) -> Iterator[None]:
        """Refusals raised inside name the protocol's fields."""
        try:
            yield
        except ContextLengthError:
            raise  # a conversation that does not fit is a matter of the messages on every route
        except RequestError as error:
            old = error.param or ""
            for chat, own in self.names.items():
                if old == chat or old.startswith((f"{chat}.", f"{chat}[")):
                    error.param = own + old[len(chat) :]
                    error.message = error.message.replace(old, error.param, 1)
                    break
            raise


def is_title(messages: tuple[Message, ...]) -> bool:
    """True for the small requests that agents send to name a session, of which no turn of a user has to wait."""
    first = messages[0] if messages else Message("user", "")
    size = sum(len(message.content) for message in messages)
    return first.role == "system" and "title" in first.content.lower() and size < TITLE_CHARS


def refusal(path: str, text: str) -> RequestError:
    """400 whose message begins with the field's path."""
    return RequestError(f"{path} {text}", param=path)


def passed_fields(body: Body) -> dict[str, Any]:
    """The fields of a body that mean what they mean in a chat."""
    return {name: body[name] for name in PASSED if body.get(name) is not None}
