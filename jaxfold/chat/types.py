"""The one internal request that every protocol produces and the events that every protocol renders. No HTTP, no JAX."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal

from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.api import TokenScore

Role = Literal["system", "developer", "user", "assistant", "tool"]
StopReason = Literal["stop", "length", "tool_calls", "cancelled"]
Overflow = Literal["reject", "clamp"]

# Levels of reasoning effort, weakest first. "none" is not a level of thinking and stands outside.
LADDER = ("minimal", "low", "medium", "high", "xhigh", "max")


class RequestError(Exception):
    """A request that is refused before anything is sent: HTTP 400 unless `status` says otherwise.

    `param` is the path of the field in OpenAI's style, e.g. "messages[2].content".
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class ContextLengthError(RequestError):
    """A prompt, or a prompt and the reply asked for, that is longer than the context. The message is OpenAI's kind.

    `prompt_tokens` is a lower bound for a text so long that it was not worth tokenising. `reply_tokens` is None where
    the prompt alone leaves no room.
    """

    def __init__(self, message: str, param: str, context: int, prompt_tokens: int, reply_tokens: int | None) -> None:
        super().__init__(message, param, "context_length_exceeded")
        self.context_length = context
        self.prompt_tokens = prompt_tokens
        self.reply_tokens = reply_tokens


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` is the decoded object, or {"_raw": text} where the JSON was broken."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One canonical message: text parts are already concatenated, null content is ""."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How a reply ends besides the model's own end token. `max_tokens` None: the server's default, capped to room.

    `overflow` says what becomes of a `max_tokens` above the room that the prompt leaves: refuse the request or lower
    the number; None is the server's setting.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    overflow: Overflow | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply must match, and the field that says so. A schema in it is the client's own."""

    spec: GrammarSpec
    param: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to continue. `tools` are the function definitions that are offered: the template shows them, and
    calls of them are read out of the reply, at most one of them without `parallel_tool_calls`.  `logprobs` asks for the
    log-probability of each token, with so many of the likeliest ones.  `constraint` is what the answer must match;
    with `force_tool` it must be a call of one of the tools.  `thinking_budget` limits the tokens of the reasoning.
    """

    messages: tuple[Message, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: Limits = field(default_factory=Limits)
    tools: tuple[Mapping[str, Any], ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    background: bool = False
    draft: bool = True
    cache_salt: str = ""
    parallel_tool_calls: bool = True
    logprobs: int | None = None
    constraint: Constraint | None = None
    force_tool: bool = False
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Raw text (no template) or token ids to continue. With `echo` the reply begins with the prompt, whose tokens then
    have log-probabilities too where `logprobs` asks for them; a limit of 0 tokens generates nothing.
    """

    prompt: str | tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: Limits = field(default_factory=Limits)
    add_special_tokens: bool = False
    background: bool = False
    draft: bool = True
    cache_salt: str = ""
    logprobs: int | None = None
    echo: bool = False
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token of a reply, the text that it added, and its score: None for the first token of an echoed prompt."""

    token_id: int
    text: str
    score: TokenScore | None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins: `index` counts the calls of the reply from 0; `name` is whole, its arguments follow in deltas."""

    index: int
    id: str
    name: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a call's arguments: the pieces of one call joined are its arguments as one JSON object.

    The pieces of one call follow each other and its start: calls never interleave.
    """

    index: int
    arguments: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a whole reply. `arguments` is the JSON of an object, or the start of one if the reply broke off."""

    id: str
    name: str
    arguments: str

    @property
    def decoded(self) -> Mapping[str, Any]:
        """The arguments; {"_raw": text} where they are no JSON object, as `ToolCall` keeps them in a history."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {"_raw": self.arguments}


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event. `token_ids` are all ids of the reply, the end token included."""

    reason: StopReason
    usage: Usage
    stats: RequestStats
    token_ids: tuple[int, ...]
    stop_sequence: str | None = None


Piece = ReasoningDelta | TextDelta | ToolCallStart | ToolCallDelta
ReplyEvent = Piece | Finish


class GenerationError(Exception):
    """The engine failed while generating (after admission): HTTP 500, or an error event in an open stream."""
