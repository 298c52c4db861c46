"""A request that was checked, rendered and tokenised: all that is left is to run it."""

from dataclasses import dataclass

from jaxfold.chat.harmony import HarmonySplitter
from jaxfold.chat.partreader import PartReader
from jaxfold.chat.reasoning import ReasoningMarkers
from jaxfold.chat.reasoning import ReasoningSplitter
from jaxfold.chat.stops import ReplyText
from jaxfold.chat.stops import StopCheck
from jaxfold.chat.stops import StopSet
from jaxfold.chat.tools.reader import ToolUse
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.types import ContextLengthError
from jaxfold.chat.types import Limits
from jaxfold.chat.types import Overflow
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import Guide
from jaxfold.runtime.api import SamplingParams
from jaxfold.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `ChatService.start` takes.

    `markers` is None where nothing of the reply can be reasoning; `in_reasoning` says that the prompt ends inside an
    open reasoning block; `channels` that replies are messages in Harmony's channels.  `tools` is how calls are read out
    of the reply, None where no tools are offered.  `param` is the field that holds the prompt, for refusals.
    `warnings` are sentences for the client or the log.  `logprobs` and `echo` as in `CompletionRequest`; `raw` says
    that tokens without a text, such as the end token, have log-probabilities too.  `guide` as in `EngineRequest`.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stops: StopSet
    end_ids: frozenset[int]
    ignore_eos: bool = False
    markers: ReasoningMarkers | None = None
    in_reasoning: bool = False
    background: bool = False
    draft: bool = True
    cache_salt: str = ""
    param: str = "messages"
    warnings: tuple[str, ...] = ()
    channels: bool = False
    tools: ToolUse | None = None
    logprobs: int | None = None
    echo: bool = False
    raw: bool = False
    guide: Guide | None = None

    @property
    def score_prompt(self) -> bool:
        """Whether the engine scores the prompt: where that is asked for, and where nothing else is to be done."""
        return self.echo and (self.logprobs is not None or not self.max_tokens)

    def part_reader(self) -> PartReader:
        """A fresh reader of the parts in the reply's text."""
        return PartReader(self.markers, self.in_reasoning, self.channels, self.tools)

    def reasoning_counter(self) -> ReasoningSplitter | HarmonySplitter | None:
        """A fresh reader that tells where the reasoning ends; None where there can be none."""
        if self.channels:
            return HarmonySplitter()
        return None if self.markers is None else ReasoningSplitter(self.markers, self.in_reasoning)

    def reply_text(self, tokenizer: Tokenizer) -> ReplyText:
        """A fresh reader of the reply's ids. All readers of one request give the same text."""
        vocabulary = tokenizer.special_tokens
        shown = set() if self.markers is None else set(self.markers.tokens(vocabulary).values())
        if self.tools is not None:
            shown |= self.tools.format.shown(vocabulary)
        if self.channels:
            shown |= FORMATS["harmony"].shown(vocabulary)
        return ReplyText(tokenizer, self.end_ids, self.ignore_eos, frozenset(shown))

    def engine_request(self, request_id: str, tokenizer: Tokenizer, accepted: bool = False) -> EngineRequest:
        """The engine's form of it, with a stop check of its own; `accepted` as in `EngineRequest`."""
        return EngineRequest(
            request_id=request_id,
            prompt_ids=self.prompt_ids,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop_ids=frozenset() if self.ignore_eos else self.end_ids,
            stop_check=StopCheck(self.reply_text(tokenizer), self.stops) if self.stops else None,
            background=self.background,
            draft=self.draft,
            cache_salt=self.cache_salt,
            accepted=accepted,
            logprobs=self.logprobs,
            score_prompt=self.score_prompt,
            guide=self.guide,
        )


def reply_limit(
    prompt_tokens: int,
    limits: Limits,
    context: int,
    default: int | None,
    overflow: Overflow,
    param: str,
    least: int = 1,
) -> int:
    """How many tokens the reply may have: what was asked for, or `default` (None: no limit) as far as there is room.

    Raises:
        ContextLengthError: the prompt leaves no room, or less than was asked for and `overflow` says "reject".
        RequestError: the number asked for is below `least`.
    """
    room = context - prompt_tokens
    asked = limits.max_tokens
    if room < 1:
        raise too_long(context, prompt_tokens, param)
    if asked is None:
        return room if default is None else min(default, room)
    if asked < least:
        raise RequestError(f"max_tokens must be at least {least}, not {asked}", "max_tokens")
    if asked > room and (limits.overflow or overflow) == "reject":
        raise ContextLengthError(
            f"{_window(context)}, but {prompt_tokens} tokens in the {param} and "
            f"{asked} for the reply make {prompt_tokens + asked}. Ask for at most {room} reply tokens, or shorten the "
            f"{param} by {asked - room} tokens.",
            param,
            context,
            prompt_tokens,
            asked,
        )
    return min(asked, room)


def too_long(context: int, prompt_tokens: int, param: str, *, at_least: bool = False) -> ContextLengthError:
    """The refusal of a prompt that leaves no room for a reply."""
    return ContextLengthError(
        f"{_window(context)}, but there are "
        f"{'at least ' if at_least else ''}{prompt_tokens} tokens in the {param}, which leaves 0 for the reply. "
        f"Shorten the {param} to at most {context - 1} tokens.",
        param,
        context,
        prompt_tokens,
        None,
    )


def _window(context: int) -> str:
    """Two phrases for one fact: clients that compact a conversation look for the one or for the other."""
    return (
        f"This server's maximum context length is {context} tokens. "
        f"This model's maximum context length is {context} tokens"
    )
