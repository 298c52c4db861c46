"""Reading GLM's notation of a call: the name, then pairs of a key and a value."""

import re

from jaxfold.chat.tools.format import MAX_NAME
from jaxfold.chat.tools.parameter import Parameters
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work

NAME = re.compile(r"[^\s<]+")


def read_pairs(reading: Reading, closer: str) -> Work[None]:
    """A call up to `closer`, which stays unread. The opening tag of a key may be missing.

    Raises:
        NotACallError: also where the text ends before `closer`, since nothing else tells that the call is complete.
    """
    source = reading.source
    name = reading.begin((yield from source.word(NAME)))
    parameters = Parameters(reading, name)
    while True:
        yield from source.space()
        if (yield from source.follows(closer)):
            parameters.close()
            return
        if not (yield from source.accept("<arg_key>")) and (yield from source.peek()) in ("", "<"):
            raise NotACallError
        kind = parameters.key((yield from source.text_until("</arg_key>", MAX_NAME)).strip())
        yield from source.space()
        yield from source.expect("<arg_value>")
        yield from parameters.value(kind, "</arg_value>")
