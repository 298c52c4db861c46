"""Llama 3: JSON calls at the start of the answer, after a token (a semicolon between them), or in function elements."""

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsoncall import read_bare
from jaxfold.chat.tools.jsoncall import read_json_call
from jaxfold.chat.tools.qwen_call import FUNCTION
from jaxfold.chat.tools.qwen_call import read_function
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import Work

OPENER = "<|python_tag|>"


class Llama(ToolFormat):
    """{"name": "f", "parameters": {"a": 1}}"""

    name = "llama"
    openers = Openers((OPENER, FUNCTION))
    tokens = (OPENER,)
    forced = ForcedCall('{"name": "', '", "parameters": ', "}")

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        if opener == FUNCTION:
            yield from read_function(reading)
            reading.end()
            return
        while True:
            yield from source.space()
            yield from read_json_call(reading)
            reading.end()
            yield from source.space()
            if not (yield from source.accept(";")):
                return

    def read_start(self, reading: Reading) -> Work[None]:
        yield from read_bare(reading, separator=";")
