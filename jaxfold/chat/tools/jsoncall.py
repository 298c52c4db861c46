"""Calls written as JSON objects, {"name": ..., "arguments": {...}}, under the names that models give the two."""

from collections.abc import Container

from jaxfold.chat.tools.jsontext import compact
from jaxfold.chat.tools.jsontext import copy_value
from jaxfold.chat.tools.jsontext import read_string
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work

NAMES = frozenset({"name", "function", "tool"})
ARGUMENTS = frozenset({"arguments", "parameters", "args"})
OTHERS = frozenset({"type", "id", "call_id"})
FENCES = ("```json", "```")


class _Call:
    """What is known of one object so far. `early` are arguments that came before the name."""

    __slots__ = ("argued", "early", "named")

    def __init__(self) -> None:
        self.named = False
        self.argued = False
        self.early: list[str] = []


def read_json_call(reading: Reading, *, strict: bool = False) -> Work[None]:
    """One object. The caller says when the call has ended.

    `strict` is for objects that no opener announces: a key that no call has makes it something else, and so does the
    absence of arguments.
    """
    call = _Call()
    yield from _read_object(reading, call, strict)
    if not call.named or (strict and not call.argued):
        raise NotACallError
    if not call.argued:
        reading.piece("{}")


def read_json_calls(reading: Reading, *, strict: bool = False, separator: str = "") -> Work[None]:
    """One object, a list of them, or several with `separator` between them. The last call is left to end."""
    source = reading.source
    listed = (yield from source.peek()) == "["
    if listed and (yield from source.need(2))[1:].strip() not in ("", "{"):
        raise NotACallError  # nothing was read: it may be the bracket of "[TOOL_CALLS]"
    if listed:
        source.take(1)
    between = "," if listed else separator
    while True:
        yield from source.space()
        yield from read_json_call(reading, strict=strict)
        yield from source.space()
        if listed and (yield from source.accept("]")):
            return
        if not between or not (yield from source.accept(between)):
            break
        reading.end()
    if listed:
        raise NotACallError


def read_bare(reading: Reading, separator: str = "") -> Work[None]:
    """An answer that is nothing but calls (see `read_json_calls`), maybe inside a code fence."""
    source = reading.source
    yield from source.space()
    fenced = False
    for fence in FENCES:
        fenced = fenced or (yield from source.accept(fence))
    if fenced:
        yield from source.space()
    yield from read_json_calls(reading, strict=True, separator=separator)
    yield from source.space()
    if fenced:
        yield from source.expect("```")
        yield from source.space()
    if (yield from source.peek()) and not reading.certain:
        raise NotACallError
    reading.end()


def _read_object(reading: Reading, call: _Call, strict: bool) -> Work[None]:
    source = reading.source
    yield from source.expect("{")
    yield from source.space()
    while True:
        key = yield from read_string(source)
        if strict and not _known(key, NAMES, ARGUMENTS, OTHERS):
            raise NotACallError
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        yield from _read_member(reading, call, key, strict)
        yield from source.space()
        if (yield from source.accept("}")):
            return
        yield from source.expect(",")
        yield from source.space()


def _read_member(reading: Reading, call: _Call, key: str, strict: bool) -> Work[None]:
    source = reading.source
    first = yield from source.peek()
    if key in NAMES and not call.named and first == '"':
        written = yield from read_string(source)
        reading.begin(written)
        call.named = True
        for text in call.early:
            reading.piece(text)
    elif key == "function" and not call.named and first == "{":
        yield from _read_object(reading, call, strict)
    elif key in ARGUMENTS and not call.argued:
        emit = reading.piece if call.named else call.early.append
        call.argued = True
        if first == "{":
            yield from copy_value(source, emit)
        elif first == '"':
            value = compact((yield from read_string(source)))
            if value is None or value[0] != "{":
                raise NotACallError
            emit(value)
        else:
            yield from source.expect("null")
            emit("{}")
    else:
        yield from copy_value(source, _dropped)


def _known(key: str, *names: Container[str]) -> bool:
    return any(key in one for one in names)


def _dropped(_: str) -> None:
    pass
