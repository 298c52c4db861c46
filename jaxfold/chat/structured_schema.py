"""JSON schemas before they become grammars: what would not be enforced is found here, since xgrammar just drops it.

Only what is known to be enforced passes; everything else is a problem with its path. `prepare_schema` also returns the
schema without the problems, for tools whose schema is relaxed, and makes explicit what the grammar would take otherwise
than JSON Schema does: arrays and objects that say nothing of what they hold may hold anything.
"""

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 10_000
MAX_TEXT = 1 << 17
"""Characters of a schema's names, values and patterns together: compiling takes longer than in proportion."""
MAX_COUNTED = 24
"""Most named properties of an object whose number of properties is limited: the grammar has a rule for each choice."""

ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
        "$comment", "$defs", "definitions",
    }
)  # fmt: skip
FORMATS = frozenset(
    {
        "date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration", "json-pointer",
        "uri-reference", "uri-template", "relative-json-pointer",
    }
)  # fmt: skip
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
_ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"})
_OBJECT = frozenset(
    {
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    }
)  # fmt: skip
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": _OBJECT,
    "array": _ARRAY,
    "string": _STRING,
    "number": _NUMBER,
    "integer": _NUMBER,
    "boolean": frozenset(),
    "null": frozenset(),
}
# Keywords that ask for nothing with these values.
_HARMLESS: Mapping[str, Any] = {"uniqueItems": False, "nullable": False, "minContains": 0}
# A quote or a backslash in a pattern would be written into the JSON string as it is; assertions are dropped.
_UNSAFE_PATTERN = re.compile(r'"|\\\\|\\x|\\u|\\c|\(\?[=!<]|\\p', re.IGNORECASE)
_LOCAL = re.compile(r"#(/.*)?")


@dataclass(frozen=True, slots=True)
class Problem:
    """A keyword that is not enforced: `path` is its place, e.g. "properties.a.not"."""

    path: str
    reason: str


class SchemaError(Exception):
    """A schema that cannot be used at all. The message is one sentence without a full stop."""


def prepare_schema(schema: Any) -> tuple[Any, tuple[Problem, ...]]:
    """The schema as it is enforced, and what of it is not.

    Raises:
        SchemaError: it is no schema, or too large or too deep.
    """
    walker = _Walker()
    done = walker.schema(schema, "", 0)
    return done, tuple(walker.problems)


class _Walker:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0
        self._text = 0

    def schema(self, node: Any, path: str, depth: int) -> Any:
        self._count(depth)
        if node is True or node == {}:
            return node
        if not isinstance(node, Mapping):
            raise SchemaError(
                f"{path or 'the schema'} must be an object or true" if node is not False else _never(path)
            )
        kept = {key: value for key, value in node.items() if key in ANNOTATIONS and key in ("$defs", "definitions")}
        rest = {key: value for key, value in node.items() if not _annotates(key)}
        for key in list(rest):
            if key in _HARMLESS and rest[key] == _HARMLESS[key]:
                del rest[key]
        self._spend(node)
        for name in kept:
            if not isinstance(kept[name], Mapping):
                raise SchemaError(f"{_at(path, name)} must be an object")
            kept[name] = {
                key: self.schema(value, _at(path, f"{name}.{key}"), depth + 1) for key, value in kept[name].items()
            }
        return {**kept, **self._body(rest, path, depth)}

    def _body(self, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        for key, one in (
            ("$ref", self._ref),
            ("anyOf", self._any_of),
            ("oneOf", self._one_of),
            ("allOf", self._all_of),
            ("const", self._values),
            ("enum", self._values),
        ):
            if key in rest:
                return one(key, rest, path, depth)
        return self._typed(rest, path, depth)

    def _alone(self, key: str, rest: dict[str, Any], path: str, *beside: str) -> None:
        """Whatever stands beside `key` is not enforced."""
        for other in rest:
            if other != key and other not in beside:
                self._problem(path, other, f"beside {key}")

    def _ref(self, key: str, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        target = rest[key]
        if not isinstance(target, str):
            raise SchemaError(f"{_at(path, key)} must be a string")
        self._alone(key, rest, path)
        if not _LOCAL.fullmatch(target):
            self._problem(path, key, "to another document or an anchor")
            return {}
        return {key: target}

    def _branches(self, key: str, rest: dict[str, Any], path: str, depth: int) -> list[Any]:
        branches = rest[key]
        if not isinstance(branches, list) or not branches:
            raise SchemaError(f"{_at(path, key)} must be a list of schemas")
        return [self.schema(one, _at(path, f"{key}[{index}]"), depth + 1) for index, one in enumerate(branches)]

    def _any_of(self, key: str, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        self._alone(key, rest, path)
        return {"anyOf": self._branches(key, rest, path, depth)}

    def _one_of(self, key: str, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        self._alone(key, rest, path)
        branches = self._branches(key, rest, path, depth)
        if not _disjoint(branches):
            self._problem(path, key, "with alternatives that may hold at once")
        return {"anyOf": branches}

    def _all_of(self, key: str, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        self._alone(key, rest, path)
        branches = self._branches(key, rest, path, depth)
        if len(branches) == 1:
            return dict(branches[0]) if isinstance(branches[0], Mapping) else {}
        self._problem(path, key, "of several schemas")
        return {}

    def _values(self, key: str, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        values = [rest[key]] if key == "const" else rest[key]
        if not isinstance(values, list) or not values:
            raise SchemaError(f"{_at(path, key)} must be a list of values")
        self._alone(key, rest, path, "type")
        kinds = _kinds(rest.get("type"), path)
        fitting = [value for value in values if kinds is None or _is_of(value, kinds)]
        if not fitting:
            raise SchemaError(f"{_at(path, key)} has no value of the type")
        return {"enum": fitting}

    def _typed(self, rest: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        kinds = _kinds(rest.pop("type", None), path)
        if kinds is None:
            # A schema without a type is narrowed to the one that its keywords are about.
            about = [kind for kind in ("object", "array", "string", "number") if rest.keys() & _OF_TYPE[kind]]
            if not about:
                for key in rest:
                    self._problem(path, key)
                return {}
            kinds = (about[0],)
        known = frozenset().union(*(_OF_TYPE[kind] for kind in kinds))
        body: dict[str, Any] = {}
        for key, value in rest.items():
            if key in known:
                body[key] = value
            else:
                self._problem(path, key)
        if "object" in kinds:
            self._object(body, path, depth)
        if "array" in kinds:
            self._array(body, path, depth)
        if "string" in kinds:
            self._string(body, path)
        self._number(body, path, kinds)
        return {"type": kinds[0] if len(kinds) == 1 else list(kinds), **body}

    def _object(self, body: dict[str, Any], path: str, depth: int) -> None:
        properties = body.get("properties", {})
        patterns = body.get("patternProperties", {})
        required = body.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(patterns, Mapping):
            raise SchemaError(f"{_at(path, 'properties')} must be an object of schemas")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{_at(path, 'required')} must be a list of names")
        if patterns and (properties or body.get("additionalProperties", False) is not False or required):
            self._problem(path, "patternProperties", "beside other keywords of an object")
            patterns = {}
            del body["patternProperties"]
        if "propertyNames" in body and (properties or patterns):
            self._problem(path, "propertyNames", "beside named properties")
            del body["propertyNames"]
        for key in ("additionalProperties", "unevaluatedProperties"):
            if isinstance(body.get(key), Mapping):
                body[key] = self.schema(body[key], _at(path, key), depth + 1)
        done = {
            name: self.schema(value, _at(path, f"properties.{name}"), depth + 1) for name, value in properties.items()
        }
        for pattern in patterns:
            self._pattern(pattern, path, "patternProperties")
        if patterns:
            body["patternProperties"] = {
                name: self.schema(value, _at(path, f"patternProperties.{name}"), depth + 1)
                for name, value in patterns.items()
            }
        more = body.get("additionalProperties", body.get("unevaluatedProperties", True))
        for name in required:
            if name not in done:
                if more is False:
                    raise SchemaError(f"{_at(path, 'required')} names {name!r}, which is no property")
                done[name] = more
        if done:
            body["properties"] = done
        elif not patterns and not {"additionalProperties", "propertyNames", "unevaluatedProperties"} & body.keys():
            body["additionalProperties"] = True
        if isinstance(body.get("propertyNames"), Mapping):
            body["propertyNames"] = self.schema(
                {"type": "string"} | body["propertyNames"], _at(path, "propertyNames"), depth + 1
            )
        if len(done) > MAX_COUNTED:
            for key in ("minProperties", "maxProperties"):
                if body.pop(key, None) is not None:
                    self._problem(path, key, f"of more than {MAX_COUNTED} named properties")

    def _array(self, body: dict[str, Any], path: str, depth: int) -> None:
        first = body.get("prefixItems")
        if first is not None:
            if not isinstance(first, list):
                raise SchemaError(f"{_at(path, 'prefixItems')} must be a list of schemas")
            body["prefixItems"] = [
                self.schema(one, _at(path, f"prefixItems[{index}]"), depth + 1) for index, one in enumerate(first)
            ]
        for key in ("items", "unevaluatedItems"):
            if isinstance(body.get(key), list):
                self._problem(path, key, "as a list (use prefixItems)")
                del body[key]
            elif isinstance(body.get(key), Mapping):
                body[key] = self.schema(body[key], _at(path, key), depth + 1)
        if "items" not in body and "unevaluatedItems" not in body:
            body["items"] = True

    def _string(self, body: dict[str, Any], path: str) -> None:
        form = body.get("format")
        if form is not None and form not in FORMATS:
            self._problem(path, "format", f"{form!r}"[:80])
            del body["format"]
        if "pattern" in body and not self._pattern(body["pattern"], path, "pattern"):
            del body["pattern"]
        if "pattern" in body and "format" in body:
            self._problem(path, "format", "beside pattern")
            del body["format"]
        if "pattern" in body or "format" in body:
            beside = "pattern" if "pattern" in body else "format"
            for key in ("minLength", "maxLength"):
                if body.pop(key, None) is not None:
                    self._problem(path, key, f"beside {beside}")

    def _pattern(self, pattern: Any, path: str, key: str) -> bool:
        if not isinstance(pattern, str):
            raise SchemaError(f"{_at(path, key)} must be a string")
        if _UNSAFE_PATTERN.search(pattern) is None:
            return True
        self._problem(path, key, "with quotes, backslashes, code points, classes by name or assertions")
        return False

    def _number(self, body: dict[str, Any], path: str, kinds: tuple[str, ...]) -> None:
        bounds = body.keys() & _NUMBER
        if "multipleOf" in body and (bounds != {"multipleOf"} or "number" in kinds):
            self._problem(path, "multipleOf", "beside other bounds, or of numbers that are no integers")
            del body["multipleOf"]
        if any(isinstance(body[key], bool) for key in bounds if key in body):
            raise SchemaError(f"{_at(path, min(bounds))} must be a number")

    def _count(self, depth: int) -> None:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise SchemaError(f"it is nested deeper than {MAX_DEPTH}")
        if self._nodes > MAX_NODES:
            raise SchemaError(f"it has more than {MAX_NODES} schemas")

    def _spend(self, node: Mapping[str, Any]) -> None:
        self._text += sum(map(_length, (value for key, value in node.items() if not _annotates(key))))
        if self._text > MAX_TEXT:
            raise SchemaError(f"its names and values have more than {MAX_TEXT} characters")

    def _problem(self, path: str, key: str, reason: str = "") -> None:
        self.problems.append(Problem(_at(path, key), reason))


def _annotates(key: str) -> bool:
    return key in ANNOTATIONS or key.startswith("x-")


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _never(path: str) -> str:
    return f"{path or 'the schema'} is false, which nothing matches"


def _kinds(kind: Any, path: str) -> tuple[str, ...] | None:
    if kind is None:
        return None
    kinds = kind if isinstance(kind, list) else [kind]
    if not kinds or not all(isinstance(one, str) and one in _OF_TYPE for one in kinds):
        raise SchemaError(f"{_at(path, 'type')} must name types of JSON Schema, not {str(kind)[:80]!r}")
    return tuple(dict.fromkeys(kinds))


def _is_of(value: Any, kinds: tuple[str, ...]) -> bool:
    match value:
        case bool():
            return "boolean" in kinds
        case None:
            return "null" in kinds
        case str():
            return "string" in kinds
        case int():
            return "integer" in kinds or "number" in kinds
        case float():
            return "number" in kinds
        case list():
            return "array" in kinds
        case _:
            return "object" in kinds


def _length(value: Any) -> int:
    """Characters of the names and texts that a keyword itself holds; schemas below it count on their own."""
    match value:
        case str():
            return len(value)
        case list():
            return sum(len(str(one)) for one in value if not isinstance(one, Mapping))
        case Mapping():
            return sum(map(len, value))
        case _:
            return 1


def _disjoint(branches: list[Any]) -> bool:
    """Whether at most one of these prepared schemas can hold for any value, as far as can be told easily."""
    return all(_apart(one, other) for index, one in enumerate(branches) for other in branches[:index])


def _apart(one: Any, other: Any) -> bool:
    kinds, others = set(_kinds_of(one)), set(_kinds_of(other))
    if not kinds or not others:
        return False
    if not kinds & others:
        return not {"integer", "number"} <= kinds | others
    if "enum" in one and "enum" in other:
        return not any(value == another for value in one["enum"] for another in other["enum"])
    if kinds == others == {"object"}:
        return any(
            "enum" in schema and "enum" in theirs and _apart(schema, theirs)
            for name, schema, theirs in _common(one, other)
            if name in one.get("required", ()) and name in other.get("required", ())
        )
    return False


def _common(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    for name in mine.keys() & theirs.keys():
        if isinstance(mine[name], Mapping) and isinstance(theirs[name], Mapping):
            yield name, mine[name], theirs[name]


def _kinds_of(schema: Any) -> tuple[str, ...]:
    """The types that a prepared schema may have; none where that is not clear."""
    if not isinstance(schema, Mapping):
        return ()
    if "enum" in schema:
        names = [kind for value in schema["enum"] for kind in _OF_TYPE if _is_of(value, (kind,))]
        return tuple(dict.fromkeys(names))
    kind = schema.get("type")
    return (kind,) if isinstance(kind, str) else tuple(kind or ())
