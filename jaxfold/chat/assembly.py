"""From the ids of a reply to its events: text, stop strings, reasoning, tool calls, usage and the reason it ended."""

import uuid
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from jaxfold.chat.prepared import Prepared
from jaxfold.chat.stops import StopFilter
from jaxfold.chat.tools.parts import CallBegin
from jaxfold.chat.tools.parts import CallEnd
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Thought
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.types import Finish
from jaxfold.chat.types import Logprob
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import StopReason
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import Usage
from jaxfold.runtime.api import Finished
from jaxfold.runtime.api import TokenScore
from jaxfold.tokenizers.base import Tokenizer


@dataclass(slots=True)
class _Growing:
    """An event that more parts of the same kind may join."""

    kind: type[Part]
    call: int
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)

    def event(self) -> Piece:
        text, ids, logprobs = "".join(self.texts), tuple(self.ids), tuple(self.logprobs)
        if self.kind is Thought:
            return ReasoningDelta(text, ids, logprobs)
        if self.kind is Words:
            return TextDelta(text, ids, logprobs)
        if self.kind is CallBegin:
            return ToolCallStart(self.call, f"call_{uuid.uuid4().hex[:24]}", text, ids, logprobs)
        return ToolCallDelta(self.call, text, ids, logprobs)


class ReplyAssembler:
    """One reply. `push` the ids as they come and `finish` once; the events of both, in order, are the reply.

    A piece carries the ids that were read since the one before it, up to the one that made its text certain. Pieces of
    one kind that follow each other in one call are one event.
    """

    def __init__(self, tokenizer: Tokenizer, prepared: Prepared) -> None:
        self._prepared = prepared
        self._text = prepared.reply_text(tokenizer)
        self._stops = StopFilter(prepared.stops)
        self._reader = prepared.part_reader()
        # Usage must not depend on stop strings that hold back the marker, so it is counted on the text before.
        self._counter = prepared.reasoning_counter()
        self._ids: list[int] = []
        self._reasoning_tokens: int | None = None
        self._fresh: list[int] = []
        self._logprobs: list[Logprob] = []
        self._echo = prepared.echo
        self._prompt_scores: list[TokenScore] = []
        self._tokenizer = tokenizer
        self._calls = 0
        self._in_call = False
        self._ended = False
        self._events: list[_Growing] = []

    def score_prompt(self, scores: Iterable[TokenScore]) -> None:
        """Scores of the next tokens of the prompt; all of them come before the first `push`."""
        self._prompt_scores += scores

    def push(self, ids: Sequence[int], scores: Sequence[TokenScore] = ()) -> list[ReplyEvent]:
        """Pieces that these ids made certain, all scored or none. Ids after a stop string are dropped."""
        for at, token_id in enumerate(ids):
            if self._stops.stop is not None:
                break
            self._ids.append(token_id)
            self._fresh.append(token_id)
            text = self._text.push(token_id)
            if scores and (self._prepared.raw or self._text.shows(token_id)):
                self._logprobs.append(Logprob(token_id, text, scores[at]))
            if not text:
                continue
            self._count(text)
            self._show(self._stops.push(text))
        return self._take()

    def finish(self, finished: Finished) -> list[ReplyEvent]:
        """The last pieces and the `Finish`."""
        self._ended = finished.reason != "cancelled"
        self._show(self._stops.push(self._text.flush()) + self._stops.flush())
        self._add(self._reader.flush())
        if self._prepared.raw and self._logprobs and self._stops.stop is None:
            self._add([Words("")])
        usage = Usage(
            prompt_tokens=len(self._prepared.prompt_ids),
            completion_tokens=len(self._ids),
            cached_tokens=finished.stats.cached_tokens,
            reasoning_tokens=self._counted(),
        )
        finish = Finish(self._reason(finished), usage, finished.stats, tuple(self._ids), self._stops.stop)
        return [*self._take(), finish]

    def _reason(self, finished: Finished) -> StopReason:
        """A reply with calls ended for them, unless it was cut off inside one."""
        if finished.reason == "cancelled":
            return "cancelled"
        reason: StopReason = "stop" if self._stops.stop is not None else finished.reason
        if not self._calls or (self._in_call and reason == "length"):
            return reason
        return "tool_calls"

    def _count(self, text: str) -> None:
        if self._counter is not None and self._reasoning_tokens is None:
            self._counter.push(text)
            if self._counter.closed:
                self._reasoning_tokens = len(self._ids)

    def _counted(self) -> int:
        if self._reasoning_tokens is not None:
            return self._reasoning_tokens
        return len(self._ids) if self._counter is not None and self._counter.opened else 0

    def _show(self, text: str) -> None:
        if text:
            self._add(self._reader.push(text))

    def _add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, CallEnd):
                self._in_call = False
                continue
            if isinstance(part, CallBegin):
                self._calls += 1
                self._in_call = True
            if isinstance(part, CallBegin) or not self._events or self._events[-1].kind is not type(part):
                self._events.append(_Growing(type(part), self._calls - 1))
            growing = self._events[-1]
            growing.texts.append(part.name if isinstance(part, CallBegin) else part.text)
            growing.ids += self._fresh
            growing.logprobs += self._logprobs
            self._fresh.clear()
            self._logprobs.clear()

    def _take(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = [growing.event() for growing in self._events]
        self._events.clear()
        if not self._echo or not (self._ids or self._ended):
            return events
        self._echo = False
        return [self._echoed(), *events]

    def _echoed(self) -> TextDelta:
        """The prompt's own text, control tokens included, as the first piece."""
        ids = self._prepared.prompt_ids
        reader = self._tokenizer.detokenizer(skip_special=False)
        texts = [reader.push(token_id) for token_id in ids]
        texts[-1] += reader.flush()
        if self._prepared.logprobs is None:
            return TextDelta("".join(texts))
        scored = zip(ids, texts, (None, *self._prompt_scores), strict=True)
        return TextDelta("".join(texts), (), tuple(Logprob(*one) for one in scored))
