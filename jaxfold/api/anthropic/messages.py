"""Anthropic's `system`, `messages`, `tools` and `tool_choice` as the canonical conversation and chat fields."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import boolean
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.openai.messages import MAX_PARTS
from jaxfold.api.openai.messages import MAX_TOOLS
from jaxfold.api.openai.messages import read_arguments
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import ToolCall

BILLING_HEADER = "x-anthropic-billing-header:"
"""A line with a new value in every request, which Claude Code puts first: no prefix could be reused behind it."""

_ROLES = ("user", "assistant", "system")
_UNSUPPORTED = MappingProxyType(
    {
        "image": "holds an image, which this model does not take: send text",
        "document": "holds a document, which this server does not read: send its text",
        "container_upload": "names a file, which this server does not keep: send its text",
        "redacted_thinking": "holds redacted thinking, which only the service that made it can read: leave it out",
    }
)
_MAX_NAME = 128
_CHOICES: Mapping[Any, str] = MappingProxyType({"auto": "auto", "any": "required", "none": "none"})


def read_system(body: Body) -> tuple[Message, ...]:
    """The system prompt as a message; none where it is empty."""
    text = _system_text(body.get("system"), "system")
    return (Message("system", text),) if text else ()


def read_turns(body: Body, *, complete: bool) -> tuple[Message, ...]:
    """The conversation in `messages`; `complete` says that it must end with something to answer.

    Raises:
        RequestError: with the path of what is wrong, e.g. "messages[2].content[0].type".
    """
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise refusal("messages", "must be a list of at least one message")
    if len(raw) > MAX_MESSAGES:
        raise refusal("messages", f"may hold at most {MAX_MESSAGES} messages")
    turns = [message for at, item in enumerate(raw) for message in _turn(item, f"messages[{at}]")]
    if complete and raw[-1].get("role") == "assistant":
        path = f"messages[{len(raw) - 1}].role"
        raise refusal(path, "is assistant in the last message: a reply cannot be begun for the model (prefill) here")
    return tuple(turns)


def read_tools(body: Body) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The tools in the chat's shape, and the names of their paths."""
    raw = sequence(body, "tools")
    if len(raw) > MAX_TOOLS:
        raise refusal("tools", f"may hold at most {MAX_TOOLS} tools")
    names: dict[str, str] = {}
    tools = []
    for at, tool in enumerate(raw):
        path = f"tools[{at}]"
        tools.append(_tool(tool, path))
        names[f"{path}.function.parameters"] = f"{path}.input_schema"
        names[f"{path}.function"] = path
    return tools, names


def read_choice(body: Body) -> tuple[Any, bool | None]:
    """`tool_choice` in the chat's shape, and whether calls may be parallel (None: not said)."""
    choice = body.get("tool_choice")
    if choice is None:
        return None, None
    path = "tool_choice"
    if not isinstance(choice, dict):
        raise refusal(path, "must be an object with a type, or null")
    one = choice.get("disable_parallel_tool_use")
    if not (one is None or isinstance(one, bool)):
        raise refusal(f"{path}.disable_parallel_tool_use", "must be true or false")
    parallel = None if one is None else not one
    kind = choice.get("type")
    if kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str) or not name:
            raise refusal(f"{path}.name", "must be the name of one of the tools")
        return {"type": "function", "function": {"name": name}}, parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise refusal(f"{path}.type", "must be auto, any, tool or none")
    return _CHOICES[kind], parallel


def _turn(raw: Any, path: str) -> Iterator[Message]:
    """One message. The results of tools come before the user's own words, as messages of their own."""
    if not isinstance(raw, dict):
        raise refusal(path, "must be an object")
    role = raw.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refusal(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
    if role == "system":
        late = _late_system(raw, path)
        if late.content:
            yield late
        return
    content = raw.get("content")
    if content is None or isinstance(content, str):
        yield Message("assistant" if role == "assistant" else "user", content or "")
        return
    blocks = list(_blocks(content, f"{path}.content"))
    if role == "assistant":
        yield _assistant(blocks)
        return
    results = [_result(block, where) for block, where in blocks if block["type"] == "tool_result"]
    yield from results
    texts = [_text(block, where) for block, where in blocks if block["type"] != "tool_result"]
    if texts or not results:
        yield Message("user", "".join(texts))


def _late_system(raw: Mapping[str, Any], path: str) -> Message:
    if raw.get("clear_at") not in (None, "never"):
        raise refusal(f"{path}.clear_at", "is not supported: a system text stays in the conversation")
    if raw.get("output_config") is not None:
        raise refusal(f"{path}.output_config", "is not supported: send output_config for the whole request")
    return Message("system", _system_text(raw.get("content"), f"{path}.content"))


def _assistant(blocks: Iterable[tuple[Mapping[str, Any], str]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block, path in blocks:
        match block["type"]:
            case "thinking":
                string(block, "signature", path=f"{path}.signature")
                thoughts.append(_word(block, "thinking", path))
            case "tool_use":
                calls.append(_call(block, path))
            case _:
                texts.append(_text(block, path))
    return Message("assistant", "".join(texts), "".join(thoughts), tuple(calls))


def _call(block: Mapping[str, Any], path: str) -> ToolCall:
    value = block.get("input")
    if not (value is None or isinstance(value, dict | str)):
        raise refusal(f"{path}.input", "must be an object")
    return ToolCall(_word(block, "id", path), _word(block, "name", path, filled=True), read_arguments(value))


def _result(block: Mapping[str, Any], path: str) -> Message:
    failed = block.get("is_error")
    if not (failed is None or isinstance(failed, bool)):
        raise refusal(f"{path}.is_error", "must be true or false")
    content = block.get("content")
    if isinstance(content, list):
        text = "\n".join(_text(part, where) for part, where in _blocks(content, f"{path}.content"))
    elif content is None or isinstance(content, str):
        text = content or ""
    else:
        raise refusal(f"{path}.content", "must be a string or a list of blocks")
    call_id = _word(block, "tool_use_id", path, filled=True)
    return Message("tool", f"Tool error: {text}" if failed else text, tool_call_id=call_id)


def _system_text(raw: Any, path: str) -> str:
    """A system text given as a string or as text blocks, which an empty line separates."""
    if raw is None:
        return ""
    texts = [raw] if isinstance(raw, str) else [_text(block, where) for block, where in _blocks(raw, path)]
    texts = [_without_billing(text) for text in texts]
    return "\n\n".join(text for text in texts if text)


def _without_billing(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_HEADER) else text


def _blocks(raw: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each block of a list with its path; blocks that no place takes are refused."""
    if not isinstance(raw, list):
        raise refusal(path, "must be a string or a list of blocks")
    if len(raw) > MAX_PARTS:
        raise refusal(path, f"may hold at most {MAX_PARTS} blocks")
    for at, block in enumerate(raw):
        where = f"{path}[{at}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise refusal(where, "must be an object with a type")
        if kind in _UNSUPPORTED:
            raise RequestError(f"{where} {_UNSUPPORTED[kind]}", param=f"{where}.type")
        check_cache_control(block, where)
        yield block, where


def _text(block: Mapping[str, Any], path: str) -> str:
    if block["type"] != "text":
        raise refusal(f"{path}.type", "is not a kind of block that may stand here")
    if block.get("citations"):
        raise refusal(f"{path}.citations", "are not supported")
    return _word(block, "text", path)


def _word(block: Mapping[str, Any], name: str, path: str, *, filled: bool = False) -> str:
    value = block.get(name)
    if not isinstance(value, str) or (filled and not value):
        raise refusal(f"{path}.{name}", "must be a non-empty string" if filled else "must be a string")
    return value


def check_cache_control(source: Mapping[str, Any], path: str) -> None:
    """Prefixes are reused without being asked, so a hint has no effect; one that is no hint is still an error."""
    hint = source.get("cache_control")
    if hint is None:
        return
    where = f"{path}.cache_control" if path else "cache_control"
    if not isinstance(hint, dict) or hint.get("type") != "ephemeral":
        raise refusal(where, 'must be {"type": "ephemeral"} or null')
    if hint.get("ttl") not in (None, "5m", "1h"):
        raise refusal(f"{where}.ttl", 'must be "5m" or "1h"')


def _tool(raw: Any, path: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise refusal(path, "must be an object")
    kind = raw.get("type")
    if not (kind is None or kind == "custom"):
        raise refusal(f"{path}.type", "names a tool that runs on Anthropic's servers; only custom tools are supported")
    name = _word(raw, "name", path, filled=True)
    if len(name) > _MAX_NAME:
        raise refusal(f"{path}.name", f"must have at most {_MAX_NAME} characters")
    schema = raw.get("input_schema")
    if not isinstance(schema, dict):
        raise refusal(f"{path}.input_schema", "must be a JSON schema object")
    for field in ("strict", "eager_input_streaming", "defer_loading"):
        if not (raw.get(field) is None or isinstance(raw[field], bool)):
            raise refusal(f"{path}.{field}", "must be true, false or null")
    if raw.get("defer_loading"):
        raise refusal(f"{path}.defer_loading", "is not supported: every tool is offered from the start")
    if raw.get("allowed_callers") not in (None, [], ["direct"]):
        raise refusal(f"{path}.allowed_callers", "is not supported: only the model calls tools")
    if raw.get("input_examples"):
        raise refusal(f"{path}.input_examples", "is not supported: put examples into the description")
    check_cache_control(raw, path)
    function: dict[str, Any] = {"name": name}
    description = string(raw, "description", path=f"{path}.description")
    if description is not None:
        function["description"] = description
    function["parameters"] = schema
    if boolean(raw, "strict"):
        function["strict"] = True
    return {"type": "function", "function": function}
