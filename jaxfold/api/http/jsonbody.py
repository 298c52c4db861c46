"""The bytes of a request body to a JSON object, with every way to get that wrong answered by 400."""

import json
import math
import re
from typing import Any
from typing import NoReturn

from jaxfold.chat.types import RequestError

MAX_DEPTH = 128
"""Deepest nesting of objects and lists. Real tool schemas stay below 30; the templates' own code is recursive."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class _NotFinite(ValueError):
    """A number that JSON does not have (NaN, Infinity) or that no float holds (1e400)."""


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        RequestError: not UTF-8, not JSON, not an object, a key given twice, nested too deeply, a number that is not
            finite, or a lone surrogate in some string (`param` is then its path).
    """
    if not body.strip():
        raise RequestError("the request body is empty; it must be a JSON object")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError("the request body is not UTF-8") from None
    last_pairs: list[tuple[str, Any]] = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal last_pairs
        last_pairs = pairs  # the outermost object is decoded last
        return dict(pairs)

    value = _decode(text, hook)
    if not isinstance(value, dict):
        raise RequestError("the request body must be a JSON object")
    if len(last_pairs) != len(value):
        names = [name for name, _ in last_pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"'{_ascii(twice)}' is given twice", param=_ascii(twice))
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
    return value


def parse_json(text: str) -> Any:
    """JSON text that stands inside a request (a tool call's arguments): strict like the body itself.

    Raises:
        ValueError: not JSON, a number that is not finite, nested too deeply, or a lone surrogate.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        _check_depth(value)
        _check_surrogates(value)
    except (RecursionError, RequestError):
        raise ValueError("nested too deeply, or not Unicode") from None
    return value


def _decode(text: str, hook: Any) -> Any:
    try:
        return json.loads(text, object_pairs_hook=hook, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise RequestError("the request body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"the request body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except _NotFinite as error:
        raise RequestError(f"the request body holds {error}, which is not a finite JSON number") from None
    except ValueError:
        # The one other refusal of Python's decoder: an integer of more than 4,300 digits.
        raise RequestError("the request body holds a number with too many digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _NotFinite(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFinite(text if len(text) <= 40 else text[:40] + "...")
    return value


def _check_depth(value: Any) -> None:
    """Refuse containers below MAX_DEPTH, level by level so that nothing here can recurse too deeply."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise RequestError("the request body is nested too deeply")


def _children(parent: Any) -> Any:
    if isinstance(parent, dict):
        return parent.values()
    return parent if isinstance(parent, list) else ()


def _check_surrogates(value: Any) -> None:
    """Refuse half of a surrogate pair: no tokenizer and no UTF-8 answer can carry it."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            if not _encodable(item):
                where = path or "the text"
                raise RequestError(f"{where} holds a lone surrogate, which is not a character", param=path or None)
        elif isinstance(item, list):
            stack.extend((f"{path}[{index}]", child) for index, child in enumerate(item))
        elif isinstance(item, dict):
            for key, child in item.items():
                name = f"{path}.{_ascii(key)}" if path else _ascii(key)
                if not _encodable(key):
                    raise RequestError(f"{name} is a key with a lone surrogate, which is not a character", param=name)
                stack.append((name, child))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ascii(text: str) -> str:
    """A client's key as it may stand in a message."""
    return text[:64].encode("ascii", "backslashreplace").decode()
