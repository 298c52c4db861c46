"""OpenAI's `messages`, `tools` and `tool_choice` to the canonical conversation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import cast
from typing import get_args

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import mapping
from jaxfold.api.http.fields import sequence
from jaxfold.api.http.fields import string
from jaxfold.api.http.jsonbody import parse_json
from jaxfold.api.http.wire import dumps
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import Role
from jaxfold.chat.types import ToolCall

ROLES: tuple[str, ...] = get_args(Role)
TITLE_CHARS = 4096
MAX_MESSAGES = 10_000
MAX_TOOLS = 1024
MAX_PARTS = 10_000

# The text of a part, by its type. A refusal in the history is what the assistant said.
_TEXT_PARTS: tuple[tuple[str, str], ...] = (
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
)
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")


def read_messages(body: Body) -> tuple[Message, ...]:
    """The conversation in `messages`.

    Raises:
        RequestError: with the path of what is wrong, e.g. "messages[2].content[0]".
    """
    raw = body.get("messages")
    if not isinstance(raw, list):
        raise RequestError("messages must be a list of messages", param="messages")
    if not raw:
        raise RequestError("messages must hold at least one message", param="messages")
    if len(raw) > MAX_MESSAGES:
        raise RequestError(f"messages may hold at most {MAX_MESSAGES} messages", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(raw))


def read_tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """The tools to offer: none under tool_choice "none", those that are named where some are."""
    tools = sequence(body, "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools may hold at most {MAX_TOOLS} tools", param="tools")
    names = [_tool_name(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = _choice(body.get("tool_choice"))
    missing = [name for name in choice.names if name not in names]
    if missing:
        raise RequestError("tool_choice names a function that is not among the tools", param="tool_choice")
    if choice.kind == "none":
        return ()
    if choice.kind == "required" and not tools:
        raise RequestError('tool_choice "required" needs tools', param="tool_choice")
    return tuple(tool for tool, name in zip(tools, names, strict=True) if not choice.names or name in choice.names)


def forces_tool(body: Body) -> bool:
    """Whether the reply must be a call of one of the tools that `read_tools` gives."""
    return _choice(body.get("tool_choice")).kind == "required"


def is_title_request(body: Body) -> bool:
    """True for the small requests that agents send to name a session: they must not slow the user's first turn."""
    messages = body.get("messages")
    if body.get("tools") or not isinstance(messages, list) or not messages:
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    first = messages[0]
    if not isinstance(first, dict) or first.get("role") != "system" or not isinstance(contents[0], str):
        return False
    size = sum(len(content) if isinstance(content, str) else TITLE_CHARS for content in contents)
    return "title" in contents[0].lower() and size < TITLE_CHARS


def _message(raw: Any, path: str) -> Message:
    if not isinstance(raw, dict):
        raise RequestError(f"{path} must be an object", param=path)
    role = raw.get("role")
    if role == "function":
        role = "tool"  # what results were called before there were tools
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(f"{path}.role must be one of {', '.join(ROLES)}", param=f"{path}.role")
    for name in ("prefix", "partial"):
        if raw.get(name):
            raise RequestError(f"{path}.{name} is not supported by this server", param=f"{path}.{name}")
    if raw.get("audio"):
        raise RequestError(f"{path}.audio is not supported by this server", param=f"{path}.audio")
    content = _content(raw.get("content"), f"{path}.content")
    calls: tuple[ToolCall, ...] = ()
    reasoning = ""
    if role == "assistant":
        content = content or string(raw, "refusal", path=f"{path}.refusal") or ""
        calls = _tool_calls(raw, path)
        for name in _REASONING_NAMES:
            reasoning = reasoning or string(raw, name, path=f"{path}.{name}") or ""
    return Message(
        role=cast(Role, role),
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=string(raw, "tool_call_id", path=f"{path}.tool_call_id"),
        name=string(raw, "name", path=f"{path}.name"),
    )


def _content(raw: Any, path: str) -> str:
    """Null is empty text; text parts are joined without a separator."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise RequestError(f"{path} must be a string, a list of parts or null", param=path)
    if len(raw) > MAX_PARTS:
        raise RequestError(f"{path} may hold at most {MAX_PARTS} parts", param=path)
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(raw))


def _part(raw: Any, path: str) -> str:
    if not isinstance(raw, dict):
        raise RequestError(f"{path} must be an object with a type", param=path)
    kind = raw.get("type")
    key = dict(_TEXT_PARTS).get(kind) if isinstance(kind, str) else None
    if key is None:
        raise RequestError(f"{path}.type is not supported: this server takes text parts only", param=f"{path}.type")
    text = raw.get(key)
    if not isinstance(text, str):
        raise RequestError(f"{path}.{key} must be a string", param=f"{path}.{key}")
    return text


def _tool_calls(raw: Mapping[str, Any], path: str) -> tuple[ToolCall, ...]:
    listed = sequence(raw, "tool_calls", path=f"{path}.tool_calls")
    calls = [_tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(listed)]
    older = mapping(raw, "function_call", path=f"{path}.function_call")
    if older and not calls:
        calls.append(_tool_call({"function": older}, f"{path}.function_call"))
    return tuple(calls)


def _tool_call(raw: Any, path: str) -> ToolCall:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{path} must be an object with a function", param=path)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{path}.function.name must be a non-empty string", param=f"{path}.function.name")
    arguments = function.get("arguments")
    return ToolCall(id=string(raw, "id", path=f"{path}.id") or "", name=name, arguments=read_arguments(arguments))


def read_arguments(raw: Any) -> Mapping[str, Any]:
    """History is data: arguments that are no JSON object stay as text, so that one bad call cannot end a session."""
    if isinstance(raw, dict):
        return raw
    if raw is None:
        return {}
    if not isinstance(raw, str):
        return {"_raw": dumps(raw)}
    if not raw.strip():
        return {}
    try:
        value = parse_json(raw)
    except ValueError:
        return {"_raw": raw}
    return value if isinstance(value, dict) else {"_raw": raw}


def _tool_name(tool: Any, path: str) -> str:
    """The name of a tool, given as OpenAI's {"type": "function", "function": {...}} or as the bare function."""
    if not isinstance(tool, dict):
        raise RequestError(f"{path} must be an object", param=path)
    if tool.get("type", "function") != "function":
        raise RequestError(f'{path}.type must be "function"', param=f"{path}.type")
    function = tool.get("function", tool)
    where = f"{path}.function" if "function" in tool else path
    if not isinstance(function, dict):
        raise RequestError(f"{where} must be an object", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name must be a non-empty string", param=f"{where}.name")
    string(function, "description", path=f"{where}.description")
    parameters = function.get("parameters")
    if not (parameters is None or isinstance(parameters, dict)):
        raise RequestError(f"{where}.parameters must be a JSON schema object", param=f"{where}.parameters")
    return name


@dataclass(frozen=True, slots=True)
class _Choice:
    """`names` are the only tools to offer; none stands for all of them."""

    kind: Literal["auto", "none", "required"]
    names: tuple[str, ...] = ()


def _choice(choice: Any) -> _Choice:
    """What `tool_choice` asks for, in any of the forms that clients use. A named function is required."""
    if choice is None:
        return _Choice("auto")
    kind = choice
    if isinstance(choice, dict):
        kind = choice.get("type") or choice.get("mode")
    match kind.lower() if isinstance(kind, str) else None:
        case "auto":
            return _Choice("auto")
        case "none":
            return _Choice("none")
        case "required":
            return _Choice("required")
        case "function" if isinstance(choice, dict):
            name = _function_name(choice)
            if name:
                return _Choice("required", (name,))
        case "allowed_tools" if isinstance(choice, dict):
            allowed = choice.get("allowed_tools", choice)
            listed = allowed.get("tools") if isinstance(allowed, dict) else None
            names = [_function_name(tool) for tool in listed] if isinstance(listed, list) else []
            if names and all(names):
                return _Choice("required" if allowed.get("mode") == "required" else "auto", tuple(names))
    raise RequestError('tool_choice must be "none", "auto", "required" or a function of the tools', param="tool_choice")


def _function_name(raw: Any) -> str:
    function = raw.get("function", raw) if isinstance(raw, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""
