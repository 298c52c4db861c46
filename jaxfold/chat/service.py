"""The door between the protocols and the engine: requests become prompts and limits, the engine's ids become replies.

Everything that can be refused is refused by `prepare_*` or `start`, before the first event. `prepare_*` and `start`
are called on the event loop; rendering and tokenising run in the service's own threads.
"""

import asyncio
import threading
import uuid
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
from functools import partial

from jaxfold.chat.assembly import ReplyAssembler
from jaxfold.chat.literals import MARKER
from jaxfold.chat.literals import SURROGATE
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.prepared import reply_limit
from jaxfold.chat.prepared import too_long
from jaxfold.chat.reply import Inbox
from jaxfold.chat.reply import Reply
from jaxfold.chat.stops import StopSet
from jaxfold.chat.stops import check_stops
from jaxfold.chat.structured import call_spec
from jaxfold.chat.structured import compiled
from jaxfold.chat.structured import forced_tools
from jaxfold.chat.structured import spec_of
from jaxfold.chat.structured import thinking_of
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.template import Rendered
from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.reader import ToolUse
from jaxfold.chat.types import ChatRequest
from jaxfold.chat.types import CompletionRequest
from jaxfold.chat.types import Overflow
from jaxfold.chat.types import RequestError
from jaxfold.chat.wakes import Wakes
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import Grammar
from jaxfold.runtime.api import Grammars
from jaxfold.runtime.api import Guide
from jaxfold.runtime.api import NotReadyError
from jaxfold.runtime.api import QueueFullError
from jaxfold.runtime.api import Thinking
from jaxfold.tokenizers.base import Tokenizer
from jaxfold.tokenizers.base import TokenizerError

# A text with fewer characters a context token than this is tokenised without a look at its length.
ORDINARY_CHARS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """`default_max_tokens` is a reply's limit where a request names none (None: the room left).

    `stop` are the stop strings of a request that names none, or with `merge_stops` of every request besides its own.
    The fields of SamplingParams in `pinned_sampling` hold whatever a request says. `thinking_budget` is that of a
    chat that names none (0: no limit).

    `reply_limit` says what becomes of a limit above the room. `max_preparing` requests may wait for or be in the
    `prepare_threads`. A reader may be `max_unread_events` engine events or `max_unread_bytes` of text behind.
    """

    default_max_tokens: int | None = 20000
    reply_limit: Overflow = "reject"
    prepare_threads: int = 2
    max_preparing: int = 256
    max_unread_events: int = 1 << 16
    max_unread_bytes: int = 8 << 20
    stop: tuple[str, ...] = ()
    merge_stops: bool = False
    thinking_budget: int = 0
    pinned_sampling: Mapping[str, float] = field(default_factory=dict)


class ChatService:
    """One model being served. Used on one event loop; `close` it at the end."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        settings: ChatSettings | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.settings = settings or ChatSettings()
        self.grammars = grammars
        self._wakes: Wakes | None = None
        self._pool = ThreadPoolExecutor(self.settings.prepare_threads, thread_name_prefix="jaxfold-prepare")
        self._slots = threading.BoundedSemaphore(self.settings.max_preparing)

    def close(self) -> None:
        """Give up waiting preparations and end the threads. Running replies are the engine's to end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.grammars is not None:
            self.grammars.close()

    async def prepare_chat(self, request: ChatRequest) -> Prepared:
        """Check, render and tokenise a conversation.

        Raises:
            RequestError: the request cannot be served as it is; a `ContextLengthError` where it does not fit.
            QueueFullError: too many requests are being prepared.
            NotReadyError: the service is closed.
        """
        return await self.in_pool(partial(self.prepare_chat_now, request))

    async def prepare_completion(self, request: CompletionRequest) -> Prepared:
        """Check and tokenise a raw prompt. Raises as `prepare_chat` does."""
        return await self.in_pool(partial(self.prepare_completion_now, request))

    async def tokenize_chat(self, request: ChatRequest, *, add_generation_prompt: bool = True) -> tuple[int, ...]:
        """The ids that `prepare_chat` would send, however long; with `add_generation_prompt` off the messages only."""
        return tuple(await self.in_pool(lambda: self.chat_ids(self.rendered(request, add_generation_prompt))))

    async def tokenize_text(self, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
        """The ids that a completion of `text` would start from, however long; none for an empty text."""
        return tuple(await self.in_pool(partial(self._text_ids, text, add_special_tokens)))

    async def detokenize(self, ids: Sequence[int], param: str = "tokens") -> str:
        """The text of ids, control tokens included.

        Raises:
            RequestError: with `param`, for an id that is not in the vocabulary.
        """
        self._check_ids(ids, param)
        return await self.in_pool(partial(self.tokenizer.decode, ids, skip_special=False))

    async def start(self, prepared: Prepared, *, accepted: bool = False) -> Reply:
        """Hand a prepared request to the engine; with `accepted` past the limits of a full queue.

        Raises:
            QueueFullError, NotReadyError: the engine takes no request now.
            RequestError: the engine can never hold this request.
        """
        request_id = f"req-{uuid.uuid4().hex[:12]}"
        inbox = Inbox(
            self._token_size,
            self.settings.max_unread_events,
            self.settings.max_unread_bytes,
            partial(self.engine.cancel, request_id),
            self._wakes_here(),
        )
        try:
            self.engine.submit(prepared.engine_request(request_id, self.tokenizer, accepted), inbox.put)
        except CapacityError as error:
            raise RequestError(str(error), prepared.param, "context_length_exceeded") from error
        return Reply(request_id, self.engine, inbox, ReplyAssembler(self.tokenizer, prepared))

    def _wakes_here(self) -> Wakes:
        """What wakes the readers of the running event loop: one for all of its replies."""
        if self._wakes is None or self._wakes.loop is not asyncio.get_running_loop():
            self._wakes = Wakes()
        return self._wakes

    def prepare_chat_now(self, request: ChatRequest) -> Prepared:
        """`prepare_chat` on the calling thread."""
        request = self._settled(request)
        limits = request.limits
        check_stops(limits.stop)
        rendered = self.rendered(request)
        self._check_length(rendered.text, "messages")
        ids = self.chat_ids(rendered)
        tools: ToolUse | None = None
        guide, warnings = self._guide(request, rendered)
        # An answer that must match something is that and no call.
        if request.tools and request.constraint is None:
            tools = ToolUse(self.template.tool_format, Offer(request.tools), request.parallel_tool_calls)
        return Prepared(
            prompt_ids=tuple(ids),
            max_tokens=self._reply_limit(ids, request, "messages"),
            sampling=request.sampling,
            stops=StopSet(limits.stop),
            end_ids=self.tokenizer.eos_ids,
            ignore_eos=limits.ignore_eos,
            markers=self.template.markers,
            in_reasoning=self.template.opens_reasoning(rendered.text),
            background=request.background,
            draft=request.draft,
            cache_salt=request.cache_salt,
            warnings=(*rendered.warnings, *warnings),
            channels=self.template.channels,
            tools=tools,
            logprobs=request.logprobs,
            guide=guide,
        )

    def prepare_completion_now(self, request: CompletionRequest) -> Prepared:
        """`prepare_completion` on the calling thread."""
        request = self._settled(request)
        limits = request.limits
        check_stops(limits.stop)
        ids = self._completion_ids(request)
        return Prepared(
            prompt_ids=tuple(ids),
            max_tokens=self._reply_limit(ids, request, "prompt"),
            sampling=request.sampling,
            stops=StopSet(limits.stop),
            end_ids=self.tokenizer.eos_ids,
            ignore_eos=limits.ignore_eos,
            background=request.background,
            draft=request.draft,
            cache_salt=request.cache_salt,
            param="prompt",
            logprobs=request.logprobs,
            echo=request.echo,
            raw=True,
            guide=self._completion_guide(request),
        )

    def _guide(self, request: ChatRequest, rendered: Rendered) -> tuple[Guide | None, tuple[str, ...]]:
        """What the reply of a chat is held to, and sentences about what it is not."""
        constraint, template = request.constraint, self.template
        budget = (self.settings.thinking_budget if request.thinking_budget is None else request.thinking_budget) or None
        constrained = constraint is not None or request.force_tool
        if not (constrained or budget):
            return None, ()
        grammar: Grammar | None = None
        warnings: tuple[str, ...] = ()
        free = False
        if request.force_tool:
            forced, warnings = forced_tools(request.tools)
            spec = call_spec(template.tool_format, forced, self.tokenizer)
            param = f"tools[{forced[0].place}]" if len(forced) == 1 else "tools"
            grammar = compiled(self.grammars, spec, param)
            free = request.parallel_tool_calls and len(forced) > 1
        elif constraint is not None:
            grammar = compiled(self.grammars, spec_of(constraint), constraint.param)
        if grammar is not None and not free:
            self._check_end(request, "tool_choice" if constraint is None else constraint.param)
        try:
            thinking = self._thinking(request, rendered, budget, constrained=constrained)
        except RequestError as error:
            if constrained or request.thinking_budget is not None:
                raise
            return None, (
                f"the server's {error.message}",
            )  # the operator's wish, about which no client can do anything
        if thinking is None and grammar is None:
            return None, warnings
        return Guide(thinking, grammar, self.tokenizer.eos_ids, free), warnings

    def _thinking(
        self, request: ChatRequest, rendered: Rendered, budget: int | None, *, constrained: bool
    ) -> Thinking | None:
        template, text = self.template, rendered.text
        return thinking_of(
            template.markers,
            self.tokenizer,
            opened=template.opens_reasoning(text),
            may_open=request.enable_thinking is not False and not text.rstrip().endswith(_end_of(template)),
            # Of a forced call in channels the reasoning is left out: its message would have to end first.
            channels=template.channels and not request.force_tool,
            constrained=constrained,
            budget=budget,
            param=_reason_for(request),
        )

    def _completion_guide(self, request: CompletionRequest) -> Guide | None:
        if request.constraint is None:
            return None
        self._check_end(request, request.constraint.param)
        grammar = compiled(self.grammars, spec_of(request.constraint), request.constraint.param)
        return Guide(None, grammar, self.tokenizer.eos_ids)

    def _check_end(self, request: ChatRequest | CompletionRequest, param: str) -> None:
        """Refuse a grammar where nothing could end its match."""
        if not self.tokenizer.eos_ids:
            raise RequestError(f"{param} needs a model with an end token", param)
        if request.limits.ignore_eos:
            raise RequestError(
                f"{param} cannot be combined with ignore_eos: the end token ends the match", "ignore_eos"
            )

    def _settled[R: (ChatRequest, CompletionRequest)](self, request: R) -> R:
        """The request with what the server's operator has set."""
        settings: ChatSettings = self.settings
        stop: tuple[str, ...] = request.limits.stop
        if settings.merge_stops or not stop:
            stop = tuple(dict.fromkeys((*stop, *settings.stop)))
        sampling = replace(request.sampling, **settings.pinned_sampling)  # type: ignore[arg-type]  # each is a field
        return replace(request, sampling=sampling, limits=replace(request.limits, stop=stop))

    def rendered(self, request: ChatRequest, add_generation_prompt: bool = True) -> Rendered:
        """The conversation as text. Raises RequestError where the template refuses it."""
        if not request.messages:
            raise RequestError("messages must hold at least one message", "messages")
        # Long texts are refused before the template works on them: that too takes time in proportion.
        chars = sum(len(message.content) + len(message.reasoning) for message in request.messages)
        self._check_chars(chars, "messages")
        return self.template.render(
            request.messages,
            tools=request.tools,
            template_kwargs=request.template_kwargs,
            enable_thinking=request.enable_thinking,
            add_generation_prompt=add_generation_prompt,
        )

    def chat_ids(self, rendered: Rendered) -> list[int]:
        """The ids of a rendered conversation. Raises RequestError where there are none."""
        try:
            ids = self.tokenizer.encode_rendered(rendered.text, rendered.literals)
        except TokenizerError as error:
            raise RequestError(f"the messages cannot be tokenised: {error}", "messages") from error
        if not ids:
            raise RequestError("rendered prompt is empty", "messages")
        return ids

    def _completion_ids(self, request: CompletionRequest) -> Sequence[int]:
        prompt = request.prompt
        if not isinstance(prompt, str):
            if not prompt:
                raise RequestError("prompt must hold at least one token id", "prompt")
            if len(prompt) >= self.engine.info.context_length:
                raise too_long(self.engine.info.context_length, len(prompt), "prompt")
            self._check_ids(prompt, "prompt")
            return prompt
        self._check_length(prompt, "prompt")
        ids = self._text_ids(prompt, request.add_special_tokens)
        if ids:
            return ids
        if self.tokenizer.bos_id is None:
            raise RequestError("prompt is empty, and this model has no token to start a text with", "prompt")
        return [self.tokenizer.bos_id]

    def _text_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        # A raw prompt is what a template would have rendered: its writer means the control tokens in it.
        text = SURROGATE.sub("\ufffd", text)
        try:
            return self.tokenizer.encode(text, add_special=add_special_tokens, parse_special=True)
        except TokenizerError as error:
            raise RequestError(f"the prompt cannot be tokenised: {error}", "prompt") from error

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        size = self.engine.info.vocab_size
        for at, token_id in enumerate(ids):
            if not 0 <= token_id < size:
                raise RequestError(
                    f"{param}[{at}] is {token_id}, but token ids of this model are 0 to {size - 1}", f"{param}[{at}]"
                )

    def _check_length(self, text: str, param: str) -> None:
        """Refuse a text that cannot fit before the work of tokenising it."""
        context = self.engine.info.context_length
        if len(text) <= ORDINARY_CHARS_PER_TOKEN * context:
            return
        self._check_chars(len(MARKER.sub("", text)), param)

    def _check_chars(self, chars: int, param: str) -> None:
        """Refuse so many characters if even the longest tokens could not hold them in the window."""
        context = self.engine.info.context_length
        least = chars // self._longest_token if chars > context else 0
        if least >= context:
            raise too_long(context, least, param, at_least=True)

    @cached_property
    def _longest_token(self) -> int:
        return max(1, *map(self._token_size, range(self.tokenizer.vocab_size)))

    def _reply_limit(self, ids: Sequence[int], request: ChatRequest | CompletionRequest, param: str) -> int:
        settings, info = self.settings, self.engine.info
        if max(ids) >= info.vocab_size:
            raise RequestError(f"the {param} hold the token {max(ids)}, which the model has no weights for", param)
        return reply_limit(
            len(ids),
            request.limits,
            info.context_length,
            settings.default_max_tokens,
            settings.reply_limit,
            param,
            least=0 if isinstance(request, CompletionRequest) and request.echo else 1,
        )

    def _token_size(self, token_id: int) -> int:
        return len(self.tokenizer.token_bytes(token_id))

    async def in_pool[T](self, work: Callable[[], T]) -> T:
        """What `work` gives, run in one of the threads that prepare requests.

        Raises:
            QueueFullError: too many requests are being prepared.
            NotReadyError: the service is closed.
        """
        if not self._slots.acquire(blocking=False):
            raise QueueFullError(f"{self.settings.max_preparing} requests are being prepared already: try again soon")
        try:
            future: Future[T] = self._pool.submit(work)
        except RuntimeError:
            self._slots.release()
            raise NotReadyError("the server is shutting down") from None
        # The slot is free when the work has ended, not when its caller has gone.
        future.add_done_callback(lambda _: self._slots.release())
        return await asyncio.wrap_future(future)


def _end_of(template: ChatTemplate) -> str:
    """What a prompt ends with whose reasoning is over already; nothing that a prompt ends with where there is none."""
    return "\0" if template.markers is None else template.markers.end


def _reason_for(request: ChatRequest) -> str:
    """The field for which it must be told where the reasoning ends."""
    if request.constraint is not None:
        return request.constraint.param
    return "tool_choice" if request.force_tool else "thinking_budget"
