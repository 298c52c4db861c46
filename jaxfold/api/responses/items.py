"""The `input` of a Responses request to canonical messages: the conversation that a chat client would send."""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType
from typing import Any
from typing import cast

from jaxfold.api.http.fields import Body
from jaxfold.api.http.fields import string
from jaxfold.api.openai.as_chat import refusal
from jaxfold.api.openai.messages import MAX_MESSAGES
from jaxfold.api.openai.messages import MAX_PARTS
from jaxfold.api.openai.messages import read_arguments
from jaxfold.api.responses.tools import joined
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import Role
from jaxfold.chat.types import ToolCall

ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS: Mapping[str, str] = MappingProxyType(
    {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
)


def read_input(body: Body) -> tuple[Message, ...]:
    """The messages of `input`.

    Raises:
        RequestError: with the path of what is wrong, e.g. "input[2].content[0].type".
    """
    raw = body.get("input")
    if isinstance(raw, str):
        return (Message("user", raw),)
    if not isinstance(raw, list) or not raw:
        raise refusal("input", "must be a string or a list of at least one item")
    if len(raw) > MAX_MESSAGES:
        raise refusal("input", f"may hold at most {MAX_MESSAGES} items")
    reader = _Reader()
    for at, item in enumerate(raw):
        reader.read(item, f"input[{at}]")
    return reader.finish()


@dataclass(slots=True)
class _Turn:
    """A turn of the assistant, which the items that follow each other make together."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        return Message("assistant", "".join(self.texts), "".join(self.thoughts), tuple(self.calls))


class _Reader:
    """Turns items into messages, in order."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._turn: _Turn | None = None

    def read(self, item: Any, path: str) -> None:
        """One item."""
        if not isinstance(item, dict):
            raise refusal(path, "must be an object")
        kind = item.get("type")
        kind = "message" if kind is None and "role" in item else kind
        match kind:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._open().thoughts.append(_thought(item, path))
            case "function_call" | "custom_tool_call":
                self._open().calls.append(_call(item, path, kind))
            case "function_call_output" | "custom_tool_call_output":
                self._add(Message("tool", _output(item, path), tool_call_id=_word(item, "call_id", path)))
            case "item_reference" | None:
                raise refusal(f"{path}.type", "names no item that can be read: items are not kept one by one, send it")
            case _:
                raise refusal(f"{path}.type", "is not a kind of item that this server takes")

    def finish(self) -> tuple[Message, ...]:
        """The messages."""
        self._close()
        return tuple(self._messages)

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise refusal(f"{path}.role", f"must be one of {', '.join(ROLES)}")
        text = _content(item.get("content"), f"{path}.content")
        if role == "assistant":
            self._open().texts.append(text)
        else:
            self._add(Message(cast(Role, role), text))

    def _open(self) -> _Turn:
        self._turn = self._turn or _Turn()
        return self._turn

    def _close(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    def _add(self, message: Message) -> None:
        self._close()
        self._messages.append(message)


def _content(raw: Any, path: str) -> str:
    """Text, or text parts, which are joined without a separator."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    if not isinstance(raw, list):
        raise refusal(path, "must be a string or a list of parts")
    return "".join(_part(part, where) for part, where in _parts(raw, path))


def _parts(raw: Sequence[Any], path: str) -> Sequence[tuple[Mapping[str, Any], str]]:
    if len(raw) > MAX_PARTS:
        raise refusal(path, f"may hold at most {MAX_PARTS} parts")
    pairs = [(part, f"{path}[{at}]") for at, part in enumerate(raw)]
    for part, where in pairs:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise refusal(where, "must be an object with a type")
    return pairs


def _part(part: Mapping[str, Any], path: str) -> str:
    kind = part["type"]
    if kind in ("input_image", "image_url"):
        raise RequestError(f"{path} holds an image, which this model does not take: send text", param=f"{path}.type")
    if kind in ("input_file", "file", "input_audio"):
        raise RequestError(f"{path} holds a file, which this server does not read: send its text", f"{path}.type")
    if kind not in _TEXT_PARTS:
        raise refusal(f"{path}.type", "is not a kind of part that this server takes")
    return _word(part, _TEXT_PARTS[kind], path)


def _thought(item: Mapping[str, Any], path: str) -> str:
    """The text of a reasoning item; a summary is not what the model thought, and stays out of the prompt."""
    if item.get("encrypted_content") is not None:
        raise refusal(f"{path}.encrypted_content", "can only be read by the service that made it: send the content")
    raw = item.get("content")
    if raw is None:
        return ""
    if not isinstance(raw, list):
        raise refusal(f"{path}.content", "must be a list of parts or null")
    texts = []
    for part, where in _parts(raw, f"{path}.content"):
        if part["type"] not in ("reasoning_text", "text"):
            raise refusal(f"{where}.type", "must be reasoning_text")
        texts.append(_word(part, "text", where))
    return "".join(texts)


def _call(item: Mapping[str, Any], path: str, kind: str) -> ToolCall:
    name = _word(item, "name", path)
    if not name:
        raise refusal(f"{path}.name", "must not be empty")
    name = joined(name, string(item, "namespace", path=f"{path}.namespace"))
    arguments: Mapping[str, Any]
    if kind == "custom_tool_call":
        arguments = {"input": _word(item, "input", path)}
    else:
        arguments = read_arguments(string(item, "arguments", path=f"{path}.arguments"))
    return ToolCall(_word(item, "call_id", path), name, arguments)


def _output(item: Mapping[str, Any], path: str) -> str:
    if item.get("output") is None:
        raise refusal(f"{path}.output", "must be a string or a list of parts")
    return _content(item["output"], f"{path}.output")


def _word(source: Mapping[str, Any], name: str, path: str) -> str:
    value = source.get(name)
    if not isinstance(value, str):
        raise refusal(f"{path}.{name}", "must be a string")
    return value
