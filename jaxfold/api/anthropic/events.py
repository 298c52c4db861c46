"""A reply as Anthropic's message: whole, and as the events of its stream."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxfold.api.exchange.blocks import Block
from jaxfold.api.exchange.blocks import BlockKind
from jaxfold.api.exchange.blocks import Closed
from jaxfold.api.exchange.blocks import Grown
from jaxfold.api.exchange.blocks import Opened
from jaxfold.api.exchange.blocks import Step
from jaxfold.api.exchange.single import Ending
from jaxfold.api.exchange.single import named_event
from jaxfold.api.http.formats import ANTHROPIC
from jaxfold.api.http.wire import dumps
from jaxfold.api.openai.messages import read_arguments
from jaxfold.chat.types import Finish
from jaxfold.chat.types import Usage

PING = named_event("ping", {"type": "ping"})
_DELTAS: Mapping[BlockKind, str] = MappingProxyType(
    {
        "text": '{"type":"text_delta","text":',
        "reasoning": '{"type":"thinking_delta","thinking":',
        "call": '{"type":"input_json_delta","partial_json":',
    }
)
_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
)


class MessageWriter:
    """Writes one message. `prompt_tokens` is known before the reply; how many were cached only at its end."""

    silence = PING

    def __init__(self, message_id: str, model: str, prompt_tokens: int) -> None:
        usage = usage_json(Usage(prompt_tokens, 0, 0, 0))
        self._message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def opening(self) -> bytes:
        return _event("message_start", message=self._message) + PING

    def step(self, step: Step) -> bytes:
        index = step.block.index
        match step:
            case Opened(block):
                return _event("content_block_start", index=index, content_block=_start(block))
            case Grown(block, text):
                head = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},"delta":'
                return f"{head}{_DELTAS[block.kind]}{dumps(text)}}}}}\n\n".encode("ascii")
            case Closed(block):
                signature = b""
                if block.kind == "reasoning":
                    delta = {"type": "signature_delta", "signature": ""}
                    signature = _event("content_block_delta", index=index, delta=delta)
                return signature + _event("content_block_stop", index=index)

    async def ending(self, end: Ending) -> bytes:
        finish = end.finish
        last = {"stop_reason": _stop_reason(finish), "stop_sequence": finish.stop_sequence}
        usage = usage_json(finish.usage)
        self._message |= last
        self._message |= {
            "content": [_whole(block) for block in end.blocks.all],
            "usage": usage,
            "jaxfold": end.stats,
        }
        return _event("message_delta", delta=last, usage=usage, jaxfold=end.stats) + _event("message_stop")

    def body(self) -> Mapping[str, Any]:
        return self._message

    def failure(self, error: Exception) -> bytes:
        return named_event("error", ANTHROPIC.body(ANTHROPIC.translate(error)))


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in Anthropic's shape: what the prefix cache gave is counted apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def tool_use_id(call_id: str) -> str:
    """The id of a call as Anthropic's clients know them."""
    return "toolu_" + call_id.removeprefix("call_")


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, {"type": name, **fields})


def _start(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": tool_use_id(block.call_id), "name": block.name, "input": {}}


def _whole(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": block.text}
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "call":
            # The arguments of a call that the limit cut are no JSON: they go as text, as they do in a history.
            return _start(block) | {"input": read_arguments(block.text)}


def _stop_reason(finish: Finish) -> str:
    if finish.reason == "stop" and finish.stop_sequence is not None:
        return "stop_sequence"
    return _STOP_REASONS[finish.reason]
