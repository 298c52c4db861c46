"""Readers for single fields: each returns a checked value, or raises a one-line RequestError with the field's path.

A null is the same as a missing field everywhere. Integers may come as 3, 3.0 or "3", floats also as text, since
clients behind web forms send them so; a bool is never a number.
"""

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from jaxfold.chat.types import RequestError

Body = Mapping[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")


def integer(body: Body, name: str, low: int | None = None, high: int | None = None) -> int | None:
    """The integer in `body[name]`, within [low, high] where these are given."""
    value = body.get(name)
    if value is None:
        return None
    number = _to_integer(value)
    if number is None:
        raise RequestError(f"{name} must be an integer or null", param=name)
    if (low is not None and number < low) or (high is not None and number > high):
        raise RequestError(f"{name} must be {_range(low, high)}, or null", param=name)
    return number


def number(body: Body, name: str, low: float | None = None, high: float | None = None) -> float | None:
    """The finite number in `body[name]`, within [low, high] where these are given."""
    value = body.get(name)
    if value is None:
        return None
    result = to_number(value)
    if result is None:
        raise RequestError(f"{name} must be a finite number or null", param=name)
    if (low is not None and result < low) or (high is not None and result > high):
        raise RequestError(f"{name} must be {_range(low, high)}, or null", param=name)
    return result


def boolean(body: Body, name: str, default: bool = False) -> bool:
    """The bool in `body[name]`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true, false or null", param=name)
    return value


def string(body: Body, name: str, *, most: int | None = None, path: str | None = None) -> str | None:
    """The string in `body[name]`, of at most `most` characters. `path` is its name in messages."""
    value = body.get(name)
    if value is None:
        return None
    path = path or name
    if not isinstance(value, str):
        raise RequestError(f"{path} must be a string or null", param=path)
    if most is not None and len(value) > most:
        raise RequestError(f"{path} must have at most {most} characters", param=path)
    return value


def mapping(body: Body, name: str, *, path: str | None = None) -> Mapping[str, Any]:
    """The object in `body[name]`; empty where it is missing."""
    value = body.get(name)
    if value is None:
        return {}
    path = path or name
    if not isinstance(value, dict):
        raise RequestError(f"{path} must be an object or null", param=path)
    return value


def sequence(body: Body, name: str, *, path: str | None = None) -> Sequence[Any]:
    """The list in `body[name]`; empty where it is missing."""
    value = body.get(name)
    if value is None:
        return ()
    path = path or name
    if not isinstance(value, list):
        raise RequestError(f"{path} must be a list or null", param=path)
    return value


def to_number(value: Any) -> float | None:
    """A finite float from a JSON number or a numeric string; None for anything else."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def _to_integer(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value.is_integer() else None


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"between {_shown(low)} and {_shown(high)}"
    return f"at least {_shown(low)}" if low is not None else f"at most {_shown(high)}"


def _shown(bound: float | None) -> str:
    return "" if bound is None else f"{bound:.20g}"
