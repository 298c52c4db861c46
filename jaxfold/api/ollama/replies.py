"""Writes one reply as Ollama does: whole, or as lines of JSON."""

from collections.abc import AsyncIterator
from typing import Any

from quart import Response

from jaxfold.api.exchange.incoming import Incoming
from jaxfold.api.exchange.rendering import stats_json
from jaxfold.api.exchange.turns import KEEP_ALIVE_S
from jaxfold.api.exchange.turns import turn_events
from jaxfold.api.exchange.turns import with_silences
from jaxfold.api.http.errors import as_api_error
from jaxfold.api.http.wire import json_response
from jaxfold.api.http.wire import timestamp
from jaxfold.api.ollama.fields import Kind
from jaxfold.api.ollama.wire import line
from jaxfold.api.ollama.wire import nanoseconds
from jaxfold.api.ollama.wire import ndjson_response
from jaxfold.chat.prepared import Prepared
from jaxfold.chat.reply import Reply
from jaxfold.chat.types import Finish
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import WrittenCall


class OllamaTurn:
    """The answer to one request of /api/chat or /api/generate."""

    def __init__(self, call: Incoming, kind: Kind) -> None:
        self._call = call
        self._kind = kind

    def loaded(self) -> dict[str, Any]:
        """The answer to a request that only wants the model in memory."""
        return self._piece() | {"done": True, "done_reason": "load"}

    async def respond(self, prepared: Prepared, reply: Reply) -> Response:
        """The response, streamed if the request asked for that."""
        if self._call.options.stream:
            return ndjson_response(self._stream(prepared, reply))
        return json_response(await self._whole(prepared, reply))

    async def _whole(self, prepared: Prepared, reply: Reply) -> dict[str, Any]:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[WrittenCall] = []
        end: dict[str, Any] = {}
        async for event in turn_events(reply):
            match event:
                case TextDelta():
                    texts.append(event.text)
                case ReasoningDelta():
                    thoughts.append(event.text)
                case WrittenCall():
                    calls.append(event)
                case Finish():
                    end = self._end(event, prepared, bool(calls))
        return self._piece("".join(texts), "".join(thoughts).strip(), calls) | end

    async def _stream(self, prepared: Prepared, reply: Reply) -> AsyncIterator[bytes]:
        """The lines of the stream. A failure in it is the last line."""
        called = False
        try:
            async for event in with_silences(turn_events(reply), KEEP_ALIVE_S):
                match event:
                    case None:
                        yield self._line()
                    case TextDelta():
                        yield self._line(event.text)
                    case ReasoningDelta():
                        yield self._line(thinking=event.text)
                    case WrittenCall():
                        called = True
                        yield self._line(calls=[event])
                    case Finish():
                        yield line(self._piece() | self._end(event, prepared, called))
        except Exception as error:
            self._call.exchange.cancel_replies()
            message = as_api_error(error).message
            yield line(self._piece() | {"done": True, "done_reason": "error", "error": message})

    def _line(self, text: str = "", thinking: str = "", calls: list[WrittenCall] | None = None) -> bytes:
        return line(self._piece(text, thinking, calls or []) | {"done": False})

    def _piece(self, text: str = "", thinking: str = "", calls: list[WrittenCall] | None = None) -> dict[str, Any]:
        """A piece of the reply, or all of it; what is empty is left out, but for the text."""
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = [
                {"id": one.id, "function": {"name": one.name, "arguments": one.decoded}} for one in calls
            ]
        head = {"model": self._call.model, "created_at": timestamp()}
        if self._kind == "generate":
            return head | {"response": text} | more
        return head | {"message": {"role": "assistant", "content": text} | more}

    def _end(self, finish: Finish, prepared: Prepared, called: bool) -> dict[str, Any]:
        """What the last line says of the whole reply. The model was loaded before, so that took no time."""
        call, stats, usage = self._call, finish.stats, finish.usage
        call.state.metrics.observe(stats, call.exchange.elapsed())
        return {
            "done": True,
            "done_reason": "tool_calls" if called else finish.reason,
            "total_duration": nanoseconds(call.exchange.elapsed()),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(stats.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(stats.decode_s),
            "prompt_cache_hit_tokens": usage.cached_tokens,
            "prompt_cache_hit_ratio": round(usage.cached_tokens / max(1, usage.prompt_tokens), 4),
            "jaxfold": stats_json(finish, prepared, call.service.engine.info.exactness, with_ids=False),
        }
