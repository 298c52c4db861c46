"""Qwen3-Coder and its successors: XML elements in tags."""

from collections.abc import Mapping
from typing import Any

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.tagged import Tagged


class QwenXml(Tagged):
    """<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"""

    name = "qwen-xml"
    forced = ForcedCall("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "qwen_xml")

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = ((key, value if isinstance(value, str) else dumps(value)) for key, value in arguments.items())
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
        return self.forced.opening(name) + body + self.forced.end
