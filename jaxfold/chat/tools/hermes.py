"""Hermes, Qwen 2.5 and Qwen 3: a JSON object in tags."""

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.tagged import Tagged


class Hermes(Tagged):
    """<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"""

    name = "hermes"
    forced = ForcedCall('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
