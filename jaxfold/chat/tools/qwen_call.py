"""Reading Qwen's XML notation of a call: a function element with parameter elements."""

from jaxfold.chat.tools.format import MAX_NAME
from jaxfold.chat.tools.jsontext import copy_value
from jaxfold.chat.tools.parameter import Parameters
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import Work

FUNCTION = "<function="


def read_function(reading: Reading) -> Work[None]:
    """What follows `<function=`, up to the end of the element. Llama's models write JSON in it instead of parameters.

    One line end beside each tag belongs to the notation; all other blank space of a value is its own.
    """
    source = reading.source
    name = reading.begin((yield from source.text_until(">", MAX_NAME)).strip())
    yield from source.space()
    if (yield from source.follows("{")):
        yield from copy_value(source, reading.piece)
        yield from source.space()
        yield from source.expect("</function>")
        return
    parameters = Parameters(reading, name)
    while True:
        yield from source.space()
        if (yield from source.accept("</function>")):
            parameters.close()
            return
        yield from source.expect("<parameter=")
        kind = parameters.key((yield from source.text_until(">", MAX_NAME)).strip())
        yield from source.accept("\n")
        yield from parameters.value(kind, "</parameter>", ("", "\n"))
