"""From the ids of a reply to its events: text, stop strings, reasoning, usage and the reason it ended."""

from collections.abc import Iterable

from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reasoning import ReasoningSplitter
from jaxfold.chat.reasoning import Split
from jaxfold.chat.stops import StopFilter
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import ReplyEvent
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import Usage
from jaxfold.runtime.api import Finished
from jaxfold.tokenizers.base import Tokenizer


class ReplyAssembler:
    """One reply. `push` the ids as they come and `finish` once; the events of both, in order, are the reply.

    A delta carries the ids that were read since the one before it, up to the one that made its text certain. Deltas of
    one kind that follow each other in one call are one event.
    """

    def __init__(self, tokenizer: Tokenizer, prepared: Prepared) -> None:
        self._prepared = prepared
        self._text = prepared.reply_text(tokenizer)
        self._stops = StopFilter(prepared.stops)
        self._splitter = self._counter = None
        if prepared.markers is not None:
            self._splitter = ReasoningSplitter(prepared.markers, prepared.in_reasoning)
            # Usage must not depend on stop strings that hold back the marker, so it is counted on the text before.
            self._counter = ReasoningSplitter(prepared.markers, prepared.in_reasoning)
        self._ids: list[int] = []
        self._reasoning_tokens: int | None = None
        self._fresh: list[int] = []
        self._events: list[tuple[type[ReasoningDelta] | type[TextDelta], list[str], list[int]]] = []

    def push(self, ids: Iterable[int]) -> list[ReplyEvent]:
        """Deltas that these ids made certain. Ids after a stop string are dropped."""
        for token_id in ids:
            if self._stops.stop is not None:
                break
            self._ids.append(token_id)
            self._fresh.append(token_id)
            text = self._text.push(token_id)
            if not text:
                continue
            self._count(text)
            self._show(self._stops.push(text))
        return self._take()

    def finish(self, finished: Finished) -> list[ReplyEvent]:
        """The last deltas and the `Finish`."""
        self._show(self._stops.push(self._text.flush()) + self._stops.flush())
        if self._splitter is not None:
            self._add(self._splitter.flush())
        reason = "stop" if self._stops.stop is not None else finished.reason
        usage = Usage(
            prompt_tokens=len(self._prepared.prompt_ids),
            completion_tokens=len(self._ids),
            cached_tokens=finished.stats.cached_tokens,
            reasoning_tokens=self._counted(),
        )
        finish = Finish(reason, usage, finished.stats, tuple(self._ids), self._stops.stop)
        return [*self._take(), finish]

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
            self._add(Split(answer=text) if self._splitter is None else self._splitter.push(text))

    def _add(self, split: Split) -> None:
        for kind, text in ((ReasoningDelta, split.reasoning), (TextDelta, split.answer)):
            if not text:
                continue
            if not self._events or self._events[-1][0] is not kind:
                self._events.append((kind, [], []))
            self._events[-1][1].append(text)
            self._events[-1][2].extend(self._fresh)
            self._fresh.clear()

    def _take(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = [kind("".join(texts), tuple(ids)) for kind, texts, ids in self._events]
        self._events.clear()
        return events
