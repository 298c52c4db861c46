"""JSON inside a reply: checked while it is written, and copied without the blank space between its tokens.

Two things that models write are taken although JSON does not allow them: line ends and other control characters inside
strings (they come out escaped) and Python's True, False and None.
"""

import json
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from jaxfold.chat.tools.source import Emit
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Source
from jaxfold.chat.tools.source import Work

MAX_DEPTH = 128

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
CONTROLS = re.compile(r"[\x00-\x1f]+")
SCALAR = re.compile(r"[-+.\w]+")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
WORDS = MappingProxyType(
    {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
)

type Copy = Callable[[Source, Emit], Work[None]]


def dumps(value: Any) -> str:
    """JSON as arguments are written: compact, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string. Pieces can be escaped one by one."""
    return dumps(text)[1:-1]


def copy_string(source: Source, emit: Emit) -> Work[None]:
    """A string with its quotes."""
    yield from source.expect('"')
    emit('"')
    while True:
        yield from source.run(PLAIN, emit)
        yield from source.run(CONTROLS, lambda text: emit(escaped(text)))
        character = yield from source.peek()
        if character == '"':
            emit(source.take(1))
            return
        if character == "\\":
            text = yield from source.need(2)
            if text == "\\u":
                text = yield from source.need(6)
            if not ESCAPE.fullmatch(text):
                raise NotACallError
            emit(source.take(len(text)))
        elif not character:
            raise NotACallError


def copy_value(source: Source, emit: Emit, string: Copy = copy_string, key: Copy = copy_string) -> Work[None]:
    """One value of any kind. Another notation brings its own `string` and `key`, which emit JSON strings.

    Raises:
        NotACallError: the text is not JSON, ends, or is nested deeper than 128 levels.
    """
    closers: list[str] = []
    while True:
        yield from source.space()
        character = yield from source.peek()
        if character and character in "{[":
            if len(closers) == MAX_DEPTH:
                raise NotACallError
            emit(source.take(1))
            closers.append("}" if character == "{" else "]")
            yield from source.space()
            if (yield from source.peek()) != closers[-1]:
                if character == "{":
                    yield from _copy_key(source, emit, key)
                continue
        elif SCALAR.match(character):
            emit((yield from _scalar(source)))
        else:
            yield from string(source, emit)
        while True:
            if not closers:
                return
            yield from source.space()
            character = yield from source.peek()
            if character == closers[-1]:
                emit(source.take(1))
                closers.pop()
            elif character == ",":
                break
            else:
                raise NotACallError
        emit(source.take(1))
        if closers[-1] == "}":
            yield from source.space()
            yield from _copy_key(source, emit, key)


def read_string(source: Source) -> Work[str]:
    """A string, decoded."""
    pieces: list[str] = []
    yield from copy_string(source, pieces.append)
    text: str = json.loads("".join(pieces))
    return text


def compact(text: str) -> str | None:
    """The one JSON value that `text` is, without blank space; None for anything else."""
    source = Source()
    source.feed(text)
    source.ended = True
    pieces: list[str] = []
    try:
        for _ in copy_value(source, pieces.append):
            pass
    except NotACallError:
        return None
    return None if source.rest().strip() else "".join(pieces)


def _copy_key(source: Source, emit: Emit, key: Copy) -> Work[None]:
    yield from key(source, emit)
    yield from source.space()
    yield from source.expect(":")
    emit(":")


def _scalar(source: Source) -> Work[str]:
    word = yield from source.word(SCALAR)
    if word in WORDS:
        return WORDS[word]
    if not NUMBER.fullmatch(word):
        raise NotACallError
    return word
