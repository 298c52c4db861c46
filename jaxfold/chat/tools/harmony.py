"""Harmony (gpt-oss): a message to a function in the commentary channel."""

import re

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsontext import copy_value
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work

OPENER = "<|channel|>commentary to=functions."
MESSAGE, CALL = "<|message|>", "<|call|>"
NAME = re.compile(r"[^\s<]+")
MAX_HEADER = 256


class Harmony(ToolFormat):
    """<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

    The messages themselves are told apart in `jaxfold/chat/harmony.py`, which leaves those to functions in the answer.
    """

    name = "harmony"
    openers = Openers((OPENER,))
    starts_bare = False
    tokens = ("<|start|>", "<|channel|>", MESSAGE, "<|constrain|>", "<|end|>", CALL)
    forced = ForcedCall(OPENER, f" <|constrain|>json{MESSAGE}", CALL)

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        reading.begin((yield from source.word(NAME)))
        yield from source.text_until(MESSAGE, MAX_HEADER)
        yield from source.space()
        if not (yield from source.follows("{")):
            raise NotACallError
        yield from copy_value(source, reading.piece)
        yield from source.space()
        if not (yield from source.accept(CALL)) and (yield from source.peek()):
            raise NotACallError
        reading.end()
