"""What the formats inside <tool_call> tags share: the tags, and telling from the first character what is inside.

Models of one family now and then write the notation of another, so a reply is read in any of them: JSON, Qwen's XML or
GLM's pairs.  The formats differ in what they write and force.
"""

from typing import ClassVar

from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsoncall import read_json_calls
from jaxfold.chat.tools.pairs import read_pairs
from jaxfold.chat.tools.qwen_call import FUNCTION
from jaxfold.chat.tools.qwen_call import read_function
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work


class Tagged(ToolFormat):
    """Tags in any case and number, with a namespace or without; and function elements, which often have no tags."""

    openers: ClassVar[Openers] = Openers((), rf"<(?:[\w-]{{1,32}}:)?tool_?calls?>|{FUNCTION}", r"<[\w:-]{0,44}")
    tokens: ClassVar[tuple[str, ...]] = ("<tool_call>", "</tool_call>")

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        if opener.endswith("="):
            yield from read_function(reading)
            reading.end()
            return
        closer = "</" + opener[1:]
        yield from source.space()
        while True:
            first = yield from source.peek()
            if first and first in "{[":
                yield from read_json_calls(reading)
            elif first == "<":
                yield from source.expect(FUNCTION)
                yield from read_function(reading)
            else:
                yield from read_pairs(reading, closer)
            yield from source.space()
            if (yield from source.accept(closer)) or not (yield from source.peek()):
                reading.end()
                return
            if (yield from source.peek()) not in ("{", "["):
                raise NotACallError
            reading.end()
