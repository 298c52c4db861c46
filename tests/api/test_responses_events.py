"""The events of a response with tool calls, which the stream and the whole response must agree on."""

import asyncio
from typing import Any

import pytest

from jaxfold.api.exchange.blocks import Blocks
from jaxfold.api.exchange.single import Ending
from jaxfold.api.responses.events import ResponseWriter
from jaxfold.api.responses.events import custom_input
from jaxfold.api.responses.tools import read_tools
from jaxfold.chat.types import Piece
from jaxfold.chat.types import ReasoningDelta
from jaxfold.chat.types import StopReason
from jaxfold.chat.types import TextDelta
from jaxfold.chat.types import ToolCallDelta
from jaxfold.chat.types import ToolCallStart
from jaxfold.chat.types import Usage
from tests.api.finishing import finish
from tests.api.named_events import parse

TOOLS = read_tools(
    {
        "tools": [
            {"type": "function", "name": "weather"},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        ]
    },
    drop_hosted=False,
)


def written(pieces: list[Piece], reason: StopReason = "stop") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the whole response, after a check of the events' grammar."""
    writer, blocks = ResponseWriter({"id": "resp_1", "output": []}, TOOLS, None), Blocks()
    data = writer.opening()
    for piece in pieces:
        data += b"".join(map(writer.step, blocks.push(piece)))
    data += b"".join(map(writer.step, blocks.finish(reason == "length")))
    data += asyncio.run(writer.ending(Ending(finish(reason, Usage(7, 5, 2, 1)), blocks, {})))
    events, whole = parse(data), dict(writer.body())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    open_item = None
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            assert open_item is None and event["item"]["status"] == "in_progress"
            open_item = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == open_item and event["item"] == whole["output"][event["output_index"]]
            open_item = None
        else:
            assert event["item_id"] == open_item == whole["output"][event["output_index"]]["id"]
    assert open_item is None and events[-1]["response"] == whole
    return events, whole


def test_calls() -> None:
    events, whole = written(
        [
            ReasoningDelta("Look."),
            ToolCallStart(0, "call_a", "weather"),
            ToolCallDelta(0, '{"city":'),
            ToolCallDelta(0, '"Paris"}'),
            TextDelta("\n"),
            ToolCallStart(1, "call_b", "patch"),
            ToolCallDelta(1, '{"input":"*** '),
            ToolCallDelta(1, 'Begin"}'),
            ToolCallStart(2, "call_c", "files__read"),
            ToolCallDelta(2, "{}"),
        ],
        "tool_calls",
    )
    assert whole["status"] == "completed"
    shown = [{key: value for key, value in item.items() if key not in ("id", "status")} for item in whole["output"]]
    assert shown == [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city":"Paris"}'},
        {"type": "custom_tool_call", "call_id": "call_b", "name": "patch", "input": "*** Begin"},
        {"type": "function_call", "call_id": "call_c", "name": "read", "namespace": "files", "arguments": "{}"},
    ]
    kinds = [event["type"] for event in events if event.get("output_index") == 1]
    assert kinds == [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert (done["name"], done["arguments"]) == ("weather", '{"city":"Paris"}')
    kinds = [event["type"] for event in events if event.get("output_index") == 2]
    assert kinds[1:3] == ["response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"]


def test_a_cut_call_is_incomplete() -> None:
    events, whole = written([TextDelta("a"), ToolCallStart(0, "call_a", "weather"), ToolCallDelta(0, "{")], "length")
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("pieces", [[], [ReasoningDelta("Hm.")]])
def test_a_finished_response_has_a_message(pieces: list[Piece]) -> None:
    _, whole = written(pieces)
    assert whole["output"][-1]["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", ["x", "{", "[]", '{"other": 1}', '{"input": 1}', ""])
def test_the_input_of_a_custom_tool_is_never_lost(arguments: str) -> None:
    assert custom_input(arguments) == arguments
