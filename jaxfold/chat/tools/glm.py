"""GLM 4.5 and later: pairs of keys and values in tags."""

from collections.abc import Mapping
from typing import Any

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.tagged import Tagged


class Glm(Tagged):
    """<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"""

    name = "glm"
    tokens = (*Tagged.tokens, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    forced = ForcedCall("<tool_call>", "\n", "</tool_call>", "glm_xml")

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        values = ((key, value if isinstance(value, str) else dumps(value)) for key, value in arguments.items())
        pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values)
        return self.forced.opening(name) + "".join(pairs) + self.forced.end
