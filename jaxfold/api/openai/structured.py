"""`response_format`, `guided_*`, `structured_outputs` and forced calls: the one thing that the reply must match."""

import json
from collections.abc import Mapping
from typing import Any

from jaxfold.api.http.fields import Body
from jaxfold.api.openai.messages import forces_tool
from jaxfold.chat.types import Constraint
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import GrammarKind
from jaxfold.runtime.api import GrammarSpec

MAX_CHARS = 1 << 17
"""Longest pattern, grammar and list of choices, in characters."""
MAX_SCHEMA_CHARS = 1 << 18
MAX_CHOICES = 1000

# vLLM's fields and what `structured_outputs` calls the same.
GUIDED: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_KEYS = (*GUIDED.values(), "json_object")


def read_shape(body: Body, own: Constraint | None = None) -> tuple[Constraint | None, bool]:
    """What the reply must match (None for anything), and whether it must be a call of one of the tools.

    `own` is what a field of the route's own protocol asks for.

    Raises:
        RequestError: as `read_constraint`, or both are asked for.
    """
    constraint, forced = read_constraint(body) if own is None else own, forces_tool(body)
    if constraint is not None and forced:
        param = constraint.param
        raise RequestError(f'{param} cannot be combined with tool_choice "required" or a named function', param=param)
    return constraint, forced


def read_constraint(body: Body) -> Constraint | None:
    """What the reply must match; None for anything. No field goes before another: two of them are refused.

    Raises:
        RequestError: a field is malformed, or two of them ask for something.
    """
    found = [one for one in (_response_format(body.get("response_format")), *_guided(body), *_structured(body)) if one]
    if len(found) > 1:
        raise RequestError(
            f"{found[1].param} and {found[0].param} both say what the reply must match: send one", found[1].param
        )
    return found[0] if found else None


def _response_format(value: Any) -> Constraint | None:
    param = "response_format"
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return Constraint(GrammarSpec("json_object"), param)
        case "json_schema":
            described = value.get("json_schema", value)
            if not isinstance(described, dict) or described.get("schema") is None:
                raise RequestError(f"{param}.json_schema.schema must be a JSON schema", f"{param}.json_schema.schema")
            return Constraint(read_schema(described["schema"], f"{param}.json_schema.schema"), param)
    raise RequestError(f'{param}.type must be "text", "json_object" or "json_schema"', f"{param}.type")


def _guided(body: Body) -> list[Constraint]:
    given = ((name, key) for name, key in GUIDED.items() if body.get(name) is not None)
    return [Constraint(_one(key, body[name], name), name) for name, key in given]


def _structured(body: Body) -> list[Constraint]:
    param = "structured_outputs"
    value = body.get(param)
    if value is None:
        return []
    if not isinstance(value, dict):
        raise RequestError(f"{param} must be an object or null", param)
    given = {key: one for key, one in value.items() if one is not None}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise RequestError(f"{param}.{unknown[0]} is not supported: use {', '.join(_KEYS)}", param)
    found = [Constraint(_one(key, one, f"{param}.{key}"), param) for key, one in given.items() if one is not False]
    if len(found) > 1:
        raise RequestError(f"{param} must hold one of {', '.join(_KEYS)}", param)
    return found


def _one(key: str, value: Any, path: str) -> GrammarSpec:
    match key:
        case "json":
            return read_schema(value, path)
        case "json_object":
            if value is not True:
                raise RequestError(f"{path} must be true, false or null", path)
            return GrammarSpec("json_object")
        case "choice":
            if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
                raise RequestError(f"{path} must be a list of non-empty strings", path)
            if len(value) > MAX_CHOICES:
                raise RequestError(f"{path} may hold at most {MAX_CHOICES} strings", path)
            return _sized("choice", json.dumps(list(dict.fromkeys(value))), path)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{path} must be a non-empty string", path)
    return _sized("regex" if key == "regex" else "ebnf", value, path)


def read_schema(value: Any, path: str) -> GrammarSpec:
    """A JSON schema, as an object or as text.

    Raises:
        RequestError: it is neither, or too long.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(f"{path} is a text that is no JSON", path) from None
    if not isinstance(value, dict | bool):
        raise RequestError(f"{path} must be a JSON schema: an object", path)
    text = json.dumps(value)
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestError(f"{path} must have at most {MAX_SCHEMA_CHARS} characters as JSON", path)
    return GrammarSpec("json_schema", text)


def _sized(kind: GrammarKind, text: str, path: str) -> GrammarSpec:
    if len(text) > MAX_CHARS:
        raise RequestError(f"{path} must have at most {MAX_CHARS} characters", path)
    return GrammarSpec(kind, text)
