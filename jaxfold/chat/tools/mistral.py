"""Mistral: a list of JSON calls after one token, or, in newer models, a token, a name and its arguments for each."""

import re

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsoncall import read_json_calls
from jaxfold.chat.tools.jsontext import copy_value
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work

OPENER, ARGUMENTS, IDENTIFIER = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
WORD = re.compile(r"[^\s\[{]+")


class Mistral(ToolFormat):
    """[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}] or [TOOL_CALLS]f[ARGS]{"a": 1}"""

    name = "mistral"
    openers = Openers((OPENER,))
    tokens = (OPENER, ARGUMENTS, IDENTIFIER)
    forced = ForcedCall(f'{OPENER}[{{"name": "', '", "arguments": ', "}]")

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        yield from source.space()
        if (yield from source.peek()) in ("[", "{"):
            yield from read_json_calls(reading)
            reading.end()
            return
        reading.begin((yield from source.word(WORD)))
        if (yield from source.accept(IDENTIFIER)):
            yield from source.word(WORD)
        yield from source.accept(ARGUMENTS)
        yield from source.space()
        if not (yield from source.follows("{")):
            raise NotACallError
        yield from copy_value(source, reading.piece)
        reading.end()
