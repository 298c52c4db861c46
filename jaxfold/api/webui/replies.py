"""Writes a turn as the page's frames: Server-Sent Events told apart by the keys they hold, one `done` at the end."""

from collections.abc import AsyncGenerator
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quart import Response

from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.replies import CUT_OFF
from jaxfold.api.exchange.turns import KEEP_ALIVE_S
from jaxfold.api.exchange.turns import turn_events
from jaxfold.api.exchange.turns import with_silences
from jaxfold.api.http.errors import as_api_error
from jaxfold.api.http.wire import event
from jaxfold.api.http.wire import stream_response
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import WrittenCall

NO_ANSWER = "(The model gave no answer.)"
SILENCE = b": still working\n\n"
"""A comment, which readers of Server-Sent Events skip."""


@dataclass(slots=True)
class _Seen:
    """What the turn has shown so far, over both tries."""

    tokens: int = 0
    prompt_tokens: int = 0
    reused: int = 0
    truncated: bool = False
    thought: bool = False
    answered: bool = False


class PageTurn:
    """One turn. `retry` starts the turn again with thinking off; it is used where all tokens went into thinking."""

    def __init__(self, call: Incoming, session_id: str, retry: Callable[[], Awaitable[Reply]] | None) -> None:
        self._call = call
        self._session_id = session_id
        self._retry = retry
        self._seen = _Seen()

    def respond(self, reply: Reply) -> Response:
        """The stream. Everything that could be refused was refused before."""
        return stream_response(self._stream(reply))

    async def _stream(self, reply: Reply) -> AsyncIterator[bytes]:
        error: str | None = None
        try:
            async for frame in with_silences(self._frames(reply), KEEP_ALIVE_S):
                yield SILENCE if frame is None else event(frame)
        except Exception as failure:
            self._call.exchange.cancel_replies()
            error = as_api_error(failure).message
        yield event(self._done(error))

    async def _frames(self, reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
        async for frame in self._try(reply):
            yield frame
        if self._retry is not None and self._seen.thought and not self._seen.answered:
            async for frame in self._try(await self._retry()):
                yield frame
        if not self._seen.answered:
            yield {"token": NO_ANSWER}

    async def _try(self, reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
        seen = self._seen
        async for item in turn_events(reply):
            match item:
                case TextDelta():
                    seen.answered = seen.answered or bool(item.text.strip())
                    yield {"token": item.text}
                case ReasoningDelta():
                    seen.thought = True
                    yield {"thinking": item.text}
                case WrittenCall():
                    seen.answered = True
                    yield {"tool_calls": [{"name": item.name, "arguments": item.decoded}]}
                case Finish():
                    self._finished(item)

    def _finished(self, finish: Finish) -> None:
        self._call.state.metrics.observe(finish.stats, self._call.exchange.elapsed())
        seen, usage = self._seen, finish.usage
        seen.tokens += usage.completion_tokens
        seen.prompt_tokens, seen.reused = usage.prompt_tokens, usage.cached_tokens
        seen.truncated = finish.reason == "length"

    def _done(self, error: str | None) -> dict[str, Any]:
        seen, elapsed = self._seen, self._call.exchange.elapsed()
        return {
            "done": True,
            "tokenCount": seen.tokens,
            "elapsed": round(elapsed, 3),
            "tokPerSec": round(seen.tokens / elapsed, 2) if elapsed > 0 else 0.0,
            "aborted": error == CUT_OFF,
            "truncated": seen.truncated,
            "error": error,
            "sessionId": self._session_id,
            "promptTokens": seen.prompt_tokens,
            "kvReusedTokens": seen.reused,
            "kvReusePercent": round(100 * seen.reused / max(1, seen.prompt_tokens), 1),
        }
