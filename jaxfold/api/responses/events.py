"""A reply as OpenAI's response object: whole, and as the events of its stream."""

import time
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from jaxfold.api.exchange.blocks import Block
from jaxfold.api.exchange.blocks import Closed
from jaxfold.api.exchange.blocks import Grown
from jaxfold.api.exchange.blocks import Opened
from jaxfold.api.exchange.blocks import Step
from jaxfold.api.exchange.single import Ending
from jaxfold.api.exchange.single import item_id
from jaxfold.api.exchange.single import named_event
from jaxfold.api.http.errors import as_api_error
from jaxfold.api.http.jsonbody import parse_json
from jaxfold.api.http.wire import dumps
from jaxfold.api.responses.tools import Offered
from jaxfold.api.responses.tools import ToolSet
from jaxfold.chat.types import Usage

Item = dict[str, Any]
Save = Callable[[Mapping[str, Any], Ending], Awaitable[bool]]
"""Keeps a finished response; False if that was not possible."""
NOT_STORED = "the response could not be stored: it cannot be fetched or continued"


class ResponseWriter:
    """Writes one response. `head` is the response object as far as it is known before the reply.

    `dropped` are values of `include` that were left out.
    """

    silence = b": keep-alive\n\n"

    def __init__(
        self, head: Mapping[str, Any], tools: ToolSet, save: Save | None, dropped: tuple[str, ...] = ()
    ) -> None:
        self._response: dict[str, Any] = dict(head)
        self._tools = tools
        self._save = save
        self._dropped = dropped
        self._items: list[Item] = []
        self._sequence = 0

    def opening(self) -> bytes:
        response = self._response
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def step(self, step: Step) -> bytes:
        block = step.block
        match step:
            case Opened():
                self._begin(block)
                return self._opened(block.index)
            case Grown(_, text):
                return self._grown(block, text)
            case Closed(_, cut):
                _fill(self._items[block.index], block.text, "incomplete" if cut else "completed")
                return self._closed(block.index)

    async def ending(self, end: Ending) -> bytes:
        data = b""
        cut = end.finish.reason == "length"
        if not cut and not any(item["type"] != "reasoning" for item in self._items):
            data = self._empty_message()
        if self._tools.dropped:
            end.stats["dropped_tools"] = list(self._tools.dropped)
        if self._dropped:
            end.stats["dropped_include"] = list(self._dropped)
        if self._tools.warnings:
            end.stats["warnings"] = [*end.stats.get("warnings", ()), *self._tools.warnings]
        self._response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "output": self._items,
            "usage": usage_json(end.finish.usage),
            "jaxfold": end.stats,
        }
        # It can be fetched before its last event or its body is sent.
        if self._save is not None and not await self._save(self._response, end):
            self._response["store"] = False
            end.stats["warnings"] = [*end.stats.get("warnings", ()), NOT_STORED]
        return data + self._event(f"response.{self._response['status']}", response=self._response)

    def body(self) -> Mapping[str, Any]:
        return self._response

    def failure(self, error: Exception) -> bytes:
        answer = as_api_error(error)
        code = "server_error" if answer.status >= 500 else "invalid_prompt"
        self._response |= {
            "status": "failed",
            "error": {"code": code, "message": answer.message},
            "output": [item for item in self._items if item["status"] == "completed"],
        }
        return self._event("response.failed", response=self._response)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return named_event(kind, value)

    def _begin(self, block: Block) -> None:
        """Add the item of a block that has begun."""
        if block.kind == "reasoning":
            item: Item = {"id": item_id("rs"), "type": "reasoning", "summary": []}
        elif block.kind == "text":
            item = {"id": item_id("msg"), "type": "message", "role": "assistant"}
        else:
            tool = self._tools.by_name.get(block.name, Offered("function", block.name))
            custom = tool.kind == "custom"
            kind = "custom_tool_call" if custom else "function_call"
            item = {"id": item_id("ctc" if custom else "fc"), "type": kind, "call_id": block.call_id, "name": tool.name}
            if tool.namespace is not None:
                item["namespace"] = tool.namespace
        _fill(item, "", "in_progress")
        self._items.append(item)

    def _opened(self, at: int) -> bytes:
        item = self._items[at]
        data = self._event("response.output_item.added", output_index=at, item=item)
        if "content" in item:
            data += self._part_event("response.content_part.added", at, part=_part(item, ""))
        return data

    def _grown(self, block: Block, text: str) -> bytes:
        item = self._items[block.index]
        match item["type"]:
            case "message":
                name, rest = "response.output_text.delta", ',"content_index":0,"logprobs":[]'
            case "reasoning":
                name, rest = "response.reasoning_text.delta", ',"content_index":0'
            case "function_call":
                name, rest = "response.function_call_arguments.delta", ""
            case _:
                return b""  # a custom tool's input is known when its JSON is whole
        data = (
            f'event: {name}\ndata: {{"type":"{name}","sequence_number":{self._sequence},"item_id":"{item["id"]}",'
            f'"output_index":{block.index}{rest},"delta":{dumps(text)}}}\n\n'
        )
        self._sequence += 1
        return data.encode("ascii")

    def _closed(self, at: int) -> bytes:
        item = self._items[at]
        ids = {"item_id": item["id"], "output_index": at}
        match item["type"]:
            case "function_call":
                fields = ids | {"name": item["name"], "arguments": item["arguments"]}
                data = self._event("response.function_call_arguments.done", **fields)
            case "custom_tool_call":
                name = "response.custom_tool_call_input"
                data = self._event(f"{name}.delta", **ids, delta=item["input"])
                data += self._event(f"{name}.done", **ids, input=item["input"])
            case kind:
                part = item["content"][0]
                more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
                name = "response.output_text.done" if kind == "message" else "response.reasoning_text.done"
                data = self._part_event(name, at, text=part["text"], **more)
                data += self._part_event("response.content_part.done", at, part=part)
        return data + self._event("response.output_item.done", output_index=at, item=item)

    def _part_event(self, kind: str, at: int, /, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._items[at]["id"], output_index=at, content_index=0, **fields)

    def _empty_message(self) -> bytes:
        """A finished response has a message, if only an empty one."""
        at = len(self._items)
        self._begin(Block(at, "text"))
        data = self._opened(at)
        _fill(self._items[at], "", "completed")
        return data + self._closed(at)


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in the shape of Responses."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def custom_input(arguments: str) -> str:
    """The text in a custom tool's arguments; the arguments themselves where the model wrote something else."""
    try:
        value = parse_json(arguments)
    except ValueError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _fill(item: Item, text: str, status: str) -> None:
    """Put the text so far into an item."""
    item["status"] = status
    match item["type"]:
        case "function_call":
            item["arguments"] = text
        case "custom_tool_call":
            item["input"] = custom_input(text)
        case _:
            item["content"] = [] if status == "in_progress" else [_part(item, text)]


def _part(item: Item, text: str) -> dict[str, Any]:
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
