"""Bare JSON, for templates that show tools and name no format: {"name": ..., "arguments": {...}} and nothing else."""

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat


class BareJson(ToolFormat):
    """Nothing begins a call but the start of the answer."""

    name = "json"
    openers = Openers(())
    forced = ForcedCall('{"name": "', '", "arguments": ', "}")
