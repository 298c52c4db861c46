"""Canonical messages in the order and shape that one model's template can render."""

import hashlib
import re
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from itertools import takewhile
from typing import Any

from jaxfold.chat.literals import Literals
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.prompt import result
from jaxfold.chat.tools.prompt import with_calls
from jaxfold.chat.types import Message
from jaxfold.chat.types import ToolCall

INSTRUCTIONS = ("system", "developer")
SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template does with unusual conversations, found once by rendering marker texts.

    `leading_system` and `late_system`: a system message at the start, and after other turns, reaches the prompt.
    `user_runs`: two user turns in a row are accepted.  `tools`, `calls` and `results`: tool definitions, an assistant's
    calls and tool results reach the prompt; `calls_beside_text`: calls of a turn with words, too.  `bridge`: what an
    assistant has to say between a tool's result and a user's turn (None: nothing).  `text_arguments`: a call's
    arguments must be JSON text, because the template cannot handle the object.  `short_ids`: ids of calls must have
    nine letters and digits.  `thought_key`: the name under which the template looks for an assistant's reasoning.
    """

    leading_system: bool = True
    late_system: bool = True
    user_runs: bool = True
    tools: bool = True
    calls: bool = True
    results: bool = True
    calls_beside_text: bool = True
    bridge: str | None = None
    text_arguments: bool = False
    short_ids: bool = False
    thought_key: str = "reasoning_content"


def arrange(messages: Sequence[Message], traits: TemplateTraits, form: ToolFormat) -> list[Message]:
    """The conversation as the template will take it.

    Leading system and developer messages become one system message, joined by an empty line; later ones stay in their
    place as system messages.  Where the template refuses or drops system text it becomes a user turn, joined to its
    neighbours if the template wants turns to alternate.  Calls that the template drops become text in the format
    `form`, and so do tool results, those in a row as one user turn.
    """
    leading = list(takewhile(lambda message: message.role in INSTRUCTIONS, messages))
    turns: list[_Turn] = []
    if leading:
        text = "\n\n".join(message.content for message in leading if message.content)
        turns.append(_Turn(Message("system", text), moved=not traits.leading_system))
    for message in _without_tools(messages[len(leading) :], traits, form):
        if message.role == "tool" and not traits.results:
            turns.append(_Turn(message, moved=True))
            continue
        late = message.role in INSTRUCTIONS
        turns.append(_Turn(replace(message, role="system") if late else message, moved=late and not traits.late_system))
    turns = [_Turn(replace(turn.message, role="user"), True) if turn.moved else turn for turn in turns]
    arranged = [turn.message for turn in (turns if traits.user_runs else _joined(turns))]
    return arranged if traits.bridge is None else _bridged(arranged, traits.bridge)


def to_template(
    messages: Iterable[Message], literals: Literals, traits: TemplateTraits, param: str
) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape for the template, with every caller's text hidden behind its literals.

    Raises:
        RequestError: with `param`, for call arguments that are nested too deeply.
    """
    return [_entry(message, literals, traits, param) for message in messages]


def plain_text(entries: Iterable[dict[str, Any]], open_line: bool = True) -> str:
    """The prompt of a model without a template: "role: content" lines and an open assistant line."""
    lines = [f"{entry['role']}: {entry['content']}\n" for entry in entries]
    return "".join([*lines, "assistant:"] if open_line else lines)


def _without_tools(messages: Iterable[Message], traits: TemplateTraits, form: ToolFormat) -> list[Message]:
    """Calls and results as text, where the template does not show them."""
    told: list[Message] = []
    for message in messages:
        if message.tool_calls and not (traits.calls and (traits.calls_beside_text or not message.content)):
            told.append(replace(message, content=with_calls(message, form), tool_calls=()))
        elif message.role == "tool" and not traits.results:
            text = result(message.content)
            if told and told[-1].role == "tool":
                text = f"{told.pop().content}\n{text}"
            told.append(Message("tool", text))
        else:
            told.append(message)
    return told


def _entry(message: Message, literals: Literals, traits: TemplateTraits, param: str) -> dict[str, Any]:
    own_words = message.role in ("system", "assistant")
    entry: dict[str, Any] = {"role": message.role, "content": literals.hide(message.content, own_words=own_words)}
    # A template with a key of its own for thoughts refuses a turn that has a text and calls beside them.
    crowded = traits.thought_key == "thinking" and message.content and message.tool_calls
    if message.reasoning and not crowded:
        entry[traits.thought_key] = literals.hide(message.reasoning, own_words=True)
    if message.tool_calls:
        entry["tool_calls"] = [_call(call, literals, traits, param) for call in message.tool_calls]
    if message.tool_call_id is not None:
        entry["tool_call_id"] = literals.hide(_call_id(message.tool_call_id, traits))
    if message.name is not None:
        entry["name"] = literals.hide(message.name)
    return entry


def _call(call: ToolCall, literals: Literals, traits: TemplateTraits, param: str) -> dict[str, Any]:
    arguments: Any = literals.hide_value(call.arguments, param)
    if traits.text_arguments:
        arguments = literals.to_json(arguments, ensure_ascii=False)
    return {
        "id": literals.hide(_call_id(call.id, traits)),
        "type": "function",
        "function": {"name": literals.hide(call.name), "arguments": arguments},
    }


def _bridged(messages: Iterable[Message], words: str) -> list[Message]:
    """With an assistant's turn after the tool results that a user's turn follows, system text between them or not."""
    bridged: list[Message] = []
    told = 0  # where the turn would go: after the last result that nobody has answered
    for message in messages:
        if message.role == "user" and told:
            bridged.insert(told, Message("assistant", words))
        bridged.append(message)
        if message.role != "system":
            told = len(bridged) if message.role == "tool" else 0
    return bridged


def _call_id(given: str, traits: TemplateTraits) -> str:
    """The id, or one in its stead that the template takes: a call and its result get the same."""
    if not traits.short_ids or SHORT_ID.fullmatch(given):
        return given
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message; `moved` marks text of the system or of a tool that has to go as a user turn."""

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
