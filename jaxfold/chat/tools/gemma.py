"""Gemma 4: JSON with bare keys, and strings between <|"|> tokens."""

import re
from collections.abc import Mapping
from typing import Any

from jaxfold.chat.tools.format import ForcedCall
from jaxfold.chat.tools.format import Openers
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.jsontext import copy_string
from jaxfold.chat.tools.jsontext import copy_value
from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.jsontext import escaped
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import Emit
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Source
from jaxfold.chat.tools.source import Work

OPENER, CLOSER, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
NAME = re.compile(r"[^\s{<]+")
KEY = re.compile(r"[^\s:,{}\[\]<\"]+")


class Gemma(ToolFormat):
    """<|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>"""

    name = "gemma"
    openers = Openers((OPENER,))
    tokens = (OPENER, CLOSER, QUOTE)
    forced = ForcedCall(f"{OPENER}call:", "", CLOSER, "gemma")

    def read(self, reading: Reading, opener: str) -> Work[None]:
        source = reading.source
        yield from source.space()
        yield from source.expect("call:")
        reading.begin((yield from source.word(NAME)))
        if not (yield from source.follows("{")):
            raise NotACallError
        yield from copy_value(source, reading.piece, _copy_text, _copy_key)
        yield from source.space()
        if not (yield from source.accept(CLOSER)) and (yield from source.peek()):
            raise NotACallError
        reading.end()

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self.forced.opening(name) + _written(arguments) + self.forced.end


def _copy_text(source: Source, emit: Emit) -> Work[None]:
    if not (yield from source.accept(QUOTE)):
        yield from copy_string(source, emit)
        return
    emit('"')
    yield from source.until(QUOTE, lambda text: emit(escaped(text)))
    emit('"')


def _copy_key(source: Source, emit: Emit) -> Work[None]:
    if (yield from source.peek()) in ("<", '"'):
        yield from _copy_text(source, emit)
        return
    key = yield from source.word(KEY)
    if not key:
        raise NotACallError
    emit(dumps(key))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return dumps(value)
