"""Tools for templates that have no place for them: a system text that explains them, and calls and results as text.

The text asks for calls in the model's tool format (Hermes' unless the server was started with another one), which is
also how earlier calls are written into the conversation.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.types import Message

RESULT = ("<tool_response>\n", "\n</tool_response>")
EXAMPLE: tuple[str, str, str] = ("TOOL_NAME", "PARAMETER", "VALUE")


def explanation(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """The system text for these tools."""
    name, parameter, value = EXAMPLE
    listed = "\n".join(dumps(tool) for tool in tools)
    return (
        "You can use tools. Each line between the tags describes one as JSON, with the schema of its parameters:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To use a tool, end your reply with a call that looks exactly like this, with the tool's name and your own "
        "arguments in place of the capital letters:\n"
        f"{form.write(name, {parameter: value})}\n\n"
        f"Write one such call for each tool you need, then stop. The results come in the next turn, between "
        f"{RESULT[0].strip()} and {RESULT[1].strip()}. If no tool is needed, just answer."
    )


def with_calls(message: Message, form: ToolFormat) -> str:
    """The text of an assistant's turn, its calls included."""
    calls = (form.write(call.name, call.arguments) for call in message.tool_calls)
    return "\n".join(text for text in (message.content, *calls) if text)


def result(content: str) -> str:
    """The text of a tool's result."""
    return RESULT[0] + content + RESULT[1]
