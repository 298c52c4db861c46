"""DSML, DeepSeek's markup: a block with one element for each call and, in it, one for each parameter."""

from collections.abc import Mapping
from typing import Any

from jaxfold.chat.tools.format import MAX_NAME
from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.offer import ANY
from jaxfold.chat.tools.parameter import Parameters
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work

MARK = "｜DSML｜"
BLOCKS = ("tool_calls", "function_calls")


class Dsml(ToolFormat):
    """The attribute `string` of a parameter says whether its text is a string or JSON."""

    name = "dsml"
    openers = Openers(tuple(f"<{MARK}{block}>" for block in BLOCKS))
    tokens = (MARK,)
    forced = ForcedCall(
        f'<{MARK}tool_calls>\n<{MARK}invoke name="', '">\n', f"</{MARK}invoke>\n</{MARK}tool_calls>", "dsml"
    )

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        closer = "</" + opener[1:]
        called = False
        while True:
            yield from source.space()
            if called and ((yield from source.accept(closer)) or not (yield from source.peek())):
                return
            yield from source.expect(f'<{MARK}invoke name="')
            yield from self._invoke(reading)
            reading.end()
            called = True

    def _invoke(self, reading: Reading) -> Work[None]:
        source = reading.source
        name = reading.begin((yield from source.text_until('"', MAX_NAME)))
        yield from source.space()
        yield from source.expect(">")
        parameters = Parameters(reading, name)
        while True:
            yield from source.space()
            if (yield from source.accept(f"</{MARK}invoke>")):
                parameters.close()
                return
            yield from source.expect(f'<{MARK}parameter name="')
            kind = parameters.key((yield from source.text_until('"', MAX_NAME)))
            yield from source.space()
            if (yield from source.accept("string=")):
                said = (yield from source.text_until(">", MAX_NAME)).strip().strip('"')
                if said not in ("true", "false"):
                    raise NotACallError
                kind = None if said == "true" else kind or ANY
            else:
                yield from source.expect(">")
            yield from parameters.value(kind, f"</{MARK}parameter>")

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        body = "".join(
            f'<{MARK}parameter name="{key}" string="{dumps(isinstance(value, str))}">'
            f"{value if isinstance(value, str) else dumps(value)}</{MARK}parameter>\n"
            for key, value in arguments.items()
        )
        return self.forced.opening(name) + body + self.forced.end
