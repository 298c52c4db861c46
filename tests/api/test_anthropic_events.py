"""The events of a message with tool calls, which the stream and the whole message must agree on."""

import asyncio
from typing import Any

import pytest

from jaxfold.api.anthropic.events import MessageWriter
from jaxfold.api.exchange.blocks import Blocks
from jaxfold.api.exchange.single import Ending
from jaxfold.chat.types import Finish
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import StopReason
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import Usage
from tests.api.finishing import finish
from tests.api.named_events import parse


def written(pieces: list[Piece], reason: StopReason) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the whole message."""
    writer, blocks = MessageWriter("msg_1", "m", 7), Blocks()
    data = writer.opening()
    for piece in pieces:
        data += b"".join(map(writer.step, blocks.push(piece)))
    data += b"".join(map(writer.step, blocks.finish(reason == "length")))
    end: Finish = finish(reason, Usage(7, 5, 2, 1))
    data += asyncio.run(writer.ending(Ending(end, blocks, {"token_sha": "x"})))
    return parse(data), dict(writer.body())


CALLS: list[Piece] = [
    ReasoningDelta("Look."),
    TextDelta("I see."),
    ToolCallStart(0, "call_0a", "weather"),
    ToolCallDelta(0, '{"city":'),
    ToolCallDelta(0, '"Paris"}'),
    TextDelta("\n"),
    ToolCallStart(1, "call_0b", "time"),
    ToolCallDelta(1, "{}"),
]


def test_calls() -> None:
    events, message = written(CALLS, "tool_calls")
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "thinking", "thinking": "Look.", "signature": ""},
        {"type": "text", "text": "I see."},
        {"type": "tool_use", "id": "toolu_0a", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "toolu_0b", "name": "time", "input": {}},
    ]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0, 1, 2, 3]
    assert starts[2]["content_block"] == {"type": "tool_use", "id": "toolu_0a", "name": "weather", "input": {}}
    pieces = [event["delta"]["partial_json"] for event in events if event.get("index") == 2 and "delta" in event]
    assert "".join(pieces) == '{"city":"Paris"}'
    open_block = None
    for event in events:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
        elif event["type"] == "content_block_delta":
            assert open_block == event["index"]
        elif event["type"] == "content_block_stop":
            assert open_block == event["index"]
            open_block = None
    assert events[-2]["usage"] == message["usage"]
    assert message["usage"]["input_tokens"] == 5


@pytest.mark.parametrize("arguments", ['{"city":"Par', "[1]"])
def test_a_call_that_is_no_object_keeps_its_text(arguments: str) -> None:
    _, message = written([ToolCallStart(0, "call_0a", "weather"), ToolCallDelta(0, arguments)], "length")
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"] == {"_raw": arguments}


def test_nothing() -> None:
    events, message = written([], "stop")
    assert message["content"] == [] and message["stop_reason"] == "end_turn"
    assert [event["type"] for event in events] == ["message_start", "ping", "message_delta", "message_stop"]
