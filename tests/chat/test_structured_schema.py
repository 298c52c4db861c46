"""What a schema says is what the grammar enforces, or it is named: checked against the grammars themselves."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jaxfold.chat.structured_schema import MAX_COUNTED
from jaxfold.chat.structured_schema import MAX_DEPTH
from jaxfold.chat.structured_schema import MAX_TEXT
from jaxfold.chat.structured_schema import SchemaError
from jaxfold.chat.structured_schema import prepare_schema
from jaxfold.runtime.api import GrammarSpec
from jaxfold.runtime.constraints.grammars import XGrammars
from tests.byte_tokenizer import ByteTokenizer

TWO = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}
TAGGED = [
    {"type": "object", "properties": {"t": {"const": name}, name: {"type": "integer"}}, "required": ["t", name]}
    for name in ("x", "y")
]
PAIR = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
MANY = {"type": "object", "properties": {f"p{i}": {} for i in range(MAX_COUNTED + 1)}, "minProperties": 1}


@pytest.fixture(scope="module")
def grammars() -> Iterator[XGrammars]:
    found = XGrammars(ByteTokenizer(), 266)
    yield found
    found.close()


def matches(grammars: XGrammars, schema: Any, text: str) -> bool:
    matcher = grammars.compile(GrammarSpec("json_schema", json.dumps(schema))).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.complete


# Schema, texts that match, texts that must not.
ENFORCED: list[tuple[Any, list[str], list[str]]] = [
    ({}, ["{}", "1", '"x"', "[1, null]"], ["x"]),
    ({"type": "object"}, ["{}", '{"a": {"b": [1, null]}}'], ["[]", "1"]),
    ({"type": "array"}, ["[]", '[1, "a"]'], ["{}"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"type": "boolean"}, ["true", "false"], ["null"]),
    ({"type": "integer", "minimum": 3, "maximum": 20}, ["3", "20"], ["2", "21", "3.5"]),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}, ["4", "5"], ["3", "6"]),
    ({"type": "number", "minimum": 1.5, "maximum": 2.5}, ["1.5", "2.25"], ["1.4", "2.6"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "5"], ["0", "-1"]),
    ({"minimum": 3}, ["3"], ["2"]),
    ({"type": "integer", "multipleOf": 3}, ["9", "12"], ["10"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"']),
    ({"minLength": 2}, ['"ab"'], ['"a"']),
    ({"type": "string", "pattern": "^[a-z]+$"}, ['"ab"'], ['"A"', '"a1"', '""']),
    ({"type": "string", "pattern": "^[^a]$"}, ['"b"'], ['"""', '"\\"']),
    ({"type": "string", "format": "date"}, ['"2020-01-31"'], ['"x"']),
    (PAIR, ["[1]", "[1,2]"], ["[]", "[1,2,3]", '["a"]']),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, ["[1]"], ["[1,2]", '["a"]']),
    ({"items": {"type": "integer"}}, ["[1]"], ['["a"]']),
    ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"']),
    ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ({"const": "only"}, ['"only"'], ['"other"']),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "x", "default": None}, ["1", "null"], ['"a"']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"]),
    ({"oneOf": TAGGED}, ['{"t": "x", "x": 1}', '{"t": "y", "y": 1}'], ['{"t": "x", "y": 1}']),
    ({"allOf": [{"type": "integer", "minimum": 2}]}, ["2"], ["1"]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, ["1"], ['"a"']),
    ({"type": "object", "properties": {"c": {"$ref": "#"}}}, ['{"c":{"c":{}}}'], ['{"c":1}']),
    (TWO, ['{"a": 1, "b": "x"}', '{"b":"x"}'], ['{"a":1}', '{"b":"x","c":1}', '{"a":"x","b":"y"}']),
    ({"properties": {"a": {"type": "integer"}}}, ['{"a":1}'], ['{"a":"x"}']),
    ({"type": "object", "required": ["zz"]}, ['{"zz":1}'], ["{}"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ['{"a":1}'], ['{"a":"x"}']),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
    ({"type": "object", "maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
    ({"type": "object", "minProperties": 2}, ['{"a":1,"b":2}'], ['{"a":1}']),
    ({"type": "object", "propertyNames": {"pattern": "^a+$"}}, ['{"aa":1}'], ['{"b":1}']),
    ({"type": "array", "uniqueItems": False}, ["[1,1]"], []),
    ({"type": "string", "description": "d", "x-order": 1, "$schema": "s", "readOnly": True}, ['"a"'], ["1"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED, ids=lambda value: json.dumps(value)[:60])
def test_what_passes_is_enforced(grammars: XGrammars, schema: Any, good: list[str], bad: list[str]) -> None:
    prepared, problems = prepare_schema(schema)
    assert problems == ()
    assert [text for text in good if not matches(grammars, prepared, text)] == []
    assert [text for text in bad if matches(grammars, prepared, text)] == []


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 8}, "maxLength"),
        ({"type": "string", "format": "date", "minLength": 8}, "minLength"),
        ({"type": "string", "format": "binary"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "string", "pattern": '^"$'}, "pattern"),
        ({"type": "string", "pattern": "^\\\\$"}, "pattern"),
        ({"type": "string", "pattern": "^\\x22$"}, "pattern"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"type": "array", "items": [{"type": "integer"}]}, "items"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"type": "integer", "multipleOf": 3, "minimum": 4}, "multipleOf"),
        ({"type": "string", "minimum": 1}, "minimum"),
        ({"not": {"type": "integer"}}, "not"),
        ({"type": "object", "if": {}, "then": {}}, "if"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "patternProperties": {"^a$": {}}, "properties": {"a": {}}}, "patternProperties"),
        ({"type": "object", "propertyNames": {"pattern": "a"}, "properties": {"a": {}}}, "propertyNames"),
        ({"anyOf": [{"type": "integer"}], "minimum": 3}, "minimum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [TWO, TWO]}, "oneOf"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf"),
        ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, "minimum"),
        ({"$ref": "http://example.org/x"}, "$ref"),
        ({"$ref": "#anchor"}, "$ref"),
        ({"enum": ["ab", "c"], "minLength": 2}, "minLength"),
        ({"type": "string", "nullable": True}, "nullable"),
        ({"type": "string", "made_up": 1}, "made_up"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}, "properties.a.items.not"),
        (MANY, "minProperties"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_is_not_enforced_is_named_and_left_out(grammars: XGrammars, schema: Any, path: str) -> None:
    prepared, problems = prepare_schema(schema)
    assert path in [problem.path for problem in problems]
    grammars.compile(GrammarSpec("json_schema", json.dumps(prepared)))
    # What is left is enforced as a whole.
    assert prepare_schema(prepared)[1] == ()


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        [],
        "string",
        {"type": "banana"},
        {"type": []},
        {"type": 1},
        {"properties": []},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "required": "a"},
        {"type": "object", "required": ["b"], "additionalProperties": False},
        {"anyOf": []},
        {"anyOf": {}},
        {"enum": []},
        {"enum": "a"},
        {"type": "integer", "enum": ["a"]},
        {"type": "string", "pattern": 1},
        {"type": "integer", "minimum": True},
        {"$ref": 1},
        {"$defs": []},
        False,
        nested(MAX_DEPTH + 1),
        nested(500),
        {"enum": ["x" * (MAX_TEXT + 1)]},
        {"type": "array", "prefixItems": [{"type": "integer"}] * 20_000},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_is_no_schema(schema: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        prepare_schema(schema)
    assert "\n" not in str(caught.value)


def test_a_schema_as_deep_as_is_allowed(grammars: XGrammars) -> None:
    prepared, problems = prepare_schema(nested(MAX_DEPTH))
    assert not problems and matches(grammars, prepared, "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
