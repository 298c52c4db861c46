"""Forced calls: whatever a model prefers, what its format's grammar lets it write is read as a call of a tool."""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from jaxfold.chat.structured import call_spec
from jaxfold.chat.structured import forced_tools
from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import Guide
from jaxfold.runtime.constraints.grammars import XGrammars
from jaxfold.runtime.constraints.lane import LaneGuide
from tests.byte_tokenizer import ByteTokenizer
from tests.chat.tools.formats import read

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "kind": {"enum": ["warm", "cold"]},
    },
    "required": ["city", "days", "kind"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"name": "now"},
]
END = "<|im_end|>"
# What ends a value that may hold anything else.
CLOSERS = ("\n</parameter>", "</arg_value>", "</｜DSML｜parameter>", '<|"|>')
WORDS = b'abcxyz 0123456789.\xc3\xa9"}]{>'


def tokenizer(name: str, as_control: bool) -> ByteTokenizer:
    tokens = FORMATS[name].tokens
    control, added = ((END, *tokens), ()) if as_control else ((END,), tokens)
    return ByteTokenizer(control, added, bos=None)


@pytest.fixture(scope="module", params=[True, False], ids=["control", "text"])
def as_control(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=sorted(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def guide(name: str, as_control: bool) -> Iterator[Guide]:
    vocabulary = tokenizer(name, as_control)
    grammars = XGrammars(vocabulary, vocabulary.vocab_size)
    tools, warnings = forced_tools(TOOLS)
    assert warnings == ()
    grammar = grammars.compile(call_spec(FORMATS[name], tools, vocabulary))
    yield Guide(grammar=grammar, end_ids=vocabulary.eos_ids)
    grammars.close()


def written(guide: Guide, vocabulary: ByteTokenizer, seed: int) -> str:
    """What a model that prefers nothing writes, with an inclination to come to an end."""
    choice = random.Random(seed)
    lane = LaneGuide(guide, -(-vocabulary.vocab_size // 32))
    ids: list[int] = []
    while not ids or ids[-1] not in vocabulary.eos_ids:
        assert len(ids) < 1500, "no end"
        mask = lane.masks()[1][0]
        assert mask is not None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        likely = [token for token in allowed if token >= 256 or token in WORDS] or allowed
        closing = [token for token in allowed if token >= 256 or token in b'"}<\n']
        pool = closing if closing and choice.random() < 0.3 else likely
        tail = b"".join(map(vocabulary.token_bytes, ids[-40:]))
        rest = [one[k] for one in map(str.encode, CLOSERS) for k in range(1, len(one)) if tail.endswith(one[:k])]
        marks = [token for token in allowed if vocabulary.is_control(token) and token != ids[0]] if ids else []
        pool = (marks if choice.random() < 0.3 else []) or [token for token in rest if token in allowed] or pool
        # Nobody begins a second call inside the first one, unless nothing else may come.
        ids.append(choice.choice([token for token in pool if not ids or token != ids[0]] or pool))
        assert lane.accept(ids[-1])
    return vocabulary.decode([token for token in ids if token not in vocabulary.eos_ids])


@pytest.mark.parametrize("seed", range(6))
def test_what_the_grammar_writes_is_a_call(guide: Guide, name: str, as_control: bool, seed: int) -> None:
    text = written(guide, tokenizer(name, as_control), seed)
    reading = read(name, [text], Offer(TOOLS))
    assert [call.name for call in reading.calls] in (["get_weather"], ["now"]), text
    assert not reading.text.strip(), text
    (call,) = reading.calls
    if call.name == "get_weather":
        jsonschema_rs.validate(PARAMETERS, json.loads(call.arguments))


def test_the_opening_is_the_formats_own(guide: Guide, name: str, as_control: bool) -> None:
    vocabulary = tokenizer(name, as_control)
    forced = FORMATS[name].forced
    lane = LaneGuide(guide, -(-vocabulary.vocab_size // 32))
    for token in vocabulary.encode(forced.opening("get_weather"), parse_special=True):
        assert lane.accept(token)
    assert not LaneGuide(guide, lane.masks()[1][0].size).accept(ord("?"))  # type: ignore[union-attr]


def test_masks_do_not_depend_on_drafts(guide: Guide, name: str, as_control: bool) -> None:
    """What is tried with drafts is what comes without, and leaves no trace."""
    vocabulary = tokenizer(name, as_control)
    words = -(-vocabulary.vocab_size // 32)
    ids = vocabulary.encode(written(guide, vocabulary, 99), parse_special=True)
    lane, plain = LaneGuide(guide, words), LaneGuide(guide, words)
    for at, token in enumerate(ids):
        drafts = ids[at : at + 5]
        kept, masks = lane.masks(drafts)
        assert kept == len(drafts) and len(masks) == kept + 1
        assert lane.masks((*drafts[:2], *vocabulary.eos_ids, *drafts))[0] <= 2
        np.testing.assert_array_equal(masks[0], plain.masks()[1][0])
        assert lane.accept(token) and plain.accept(token)
        np.testing.assert_array_equal(masks[1], plain.masks()[1][0])


def tool(schema: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema, **fields}}]


def test_what_a_tool_does_not_enforce_is_said() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}
    (forced,), warnings = forced_tools(tool(schema))
    assert forced.schema == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert len(warnings) == 1 and "tools[0]" in warnings[0] and "properties.a.not" in warnings[0]
    with pytest.raises(RequestError) as caught:
        forced_tools([TOOLS[1], *tool(schema, strict=True)])
    assert caught.value.param == "tools[1]"


@pytest.mark.parametrize("schema", [{"type": "banana"}, {"properties": {"a": {"type": "banana", "pattern": "["}}}])
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        forced_tools(tool(schema))
    assert caught.value.param == "tools[0]"
