"""Canonical messages in the order and shape that one model's template can render."""

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import takewhile
from typing import Any

from jaxfold.chat.literals import Literals
from jaxfold.chat.types import Message
from jaxfold.chat.types import ToolCall

INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template does with unusual conversations, found once by rendering marker texts.

    `leading_system` and `late_system`: a system message at the start, and after other turns, reaches the prompt.
    `user_runs`: two user turns in a row are accepted. `text_arguments`: a call's arguments must be JSON text, because
    the template cannot handle the object.
    """

    leading_system: bool = True
    late_system: bool = True
    user_runs: bool = True
    text_arguments: bool = False


def arrange(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """The conversation as the template will take it.

    Leading system and developer messages become one system message, joined by an empty line; later ones stay in their
    place as system messages.  Where the template refuses or drops system text it becomes a user turn, joined to its
    neighbours if the template wants turns to alternate.
    """
    leading = list(takewhile(lambda message: message.role in INSTRUCTIONS, messages))
    turns: list[_Turn] = []
    if leading:
        text = "\n\n".join(message.content for message in leading if message.content)
        turns.append(_Turn(Message("system", text), moved=not traits.leading_system))
    for message in messages[len(leading) :]:
        late = message.role in INSTRUCTIONS
        turns.append(_Turn(replace(message, role="system") if late else message, moved=late and not traits.late_system))
    turns = [_Turn(replace(turn.message, role="user"), True) if turn.moved else turn for turn in turns]
    return [turn.message for turn in (turns if traits.user_runs else _joined(turns))]


def to_template(
    messages: Iterable[Message], literals: Literals, traits: TemplateTraits, param: str
) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape for the template, with every caller's text hidden behind its literals.

    Raises:
        RequestError: with `param`, for call arguments that are nested too deeply.
    """
    return [_entry(message, literals, traits, param) for message in messages]


def plain_text(entries: Iterable[dict[str, Any]], literals: Literals, open_line: bool = True) -> str:
    """The prompt of a model without a template: "role: content" lines, a call as its JSON, an open assistant line."""
    lines: list[str] = []
    for entry in entries:
        text = entry["content"]
        for call in entry.get("tool_calls", ()):
            function = literals.to_json(call["function"], ensure_ascii=False)
            text = f"{text}\n{function}" if text else function
        lines.append(f"{entry['role']}: {text}\n")
    return "".join([*lines, "assistant:"] if open_line else lines)


def _entry(message: Message, literals: Literals, traits: TemplateTraits, param: str) -> dict[str, Any]:
    own_words = message.role in ("system", "assistant")
    entry: dict[str, Any] = {"role": message.role, "content": literals.hide(message.content, own_words=own_words)}
    if message.reasoning:
        entry["reasoning_content"] = literals.hide(message.reasoning, own_words=True)
    if message.tool_calls:
        entry["tool_calls"] = [_call(call, literals, traits, param) for call in message.tool_calls]
    if message.tool_call_id is not None:
        entry["tool_call_id"] = literals.hide(message.tool_call_id)
    if message.name is not None:
        entry["name"] = literals.hide(message.name)
    return entry


def _call(call: ToolCall, literals: Literals, traits: TemplateTraits, param: str) -> dict[str, Any]:
    arguments: Any = literals.hide_value(call.arguments, param)
    if traits.text_arguments:
        arguments = literals.to_json(arguments, ensure_ascii=False)
    return {
        "id": literals.hide(call.id),
        "type": "function",
        "function": {"name": literals.hide(call.name), "arguments": arguments},
    }


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message; `moved` marks system text that has to go as a user turn."""

    message: Message
    moved: bool


def _joined(turns: Iterable[_Turn]) -> list[_Turn]:
    """Moved turns joined to the user turns beside them."""
    joined: list[_Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        beside = last is not None and last.message.role == turn.message.role == "user"
        if last is not None and beside and (last.moved or turn.moved):
            content = "\n\n".join(text for text in (last.message.content, turn.message.content) if text)
            joined[-1] = _Turn(replace(last.message, content=content), turn.moved)
        else:
            joined.append(turn)
    return joined
