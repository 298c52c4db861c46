"""What the tests of all formats share: tools, a reading in any pieces, and the checks that every format has to pass."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from typing import ClassVar

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.parts import CallBegin
from jaxfold.chat.tools.parts import CallEnd
from jaxfold.chat.tools.parts import CallPiece
from jaxfold.chat.tools.parts import Part
from jaxfold.chat.tools.parts import Words
from jaxfold.chat.tools.reader import HELD
from jaxfold.chat.tools.reader import CallReader
from jaxfold.chat.tools.reader import ToolUse
from jaxfold.chat.tools.registry import FORMATS

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "metric": {"type": "boolean"},
    "limit": {"type": "number"},
    "tags": {"type": "array"},
    "where": {"type": "object"},
    "nothing": {"type": "null"},
    "either": {"type": ["integer", "string"]},
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": PROPERTIES}},
    },
    {"name": "now"},
]
OFFER = Offer(TOOLS)


@dataclass
class Call:
    """A call of a reading; `complete` is False where the reply broke off in it."""

    name: str
    arguments: str = ""
    complete: bool = False

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass
class Read:
    """A reply as its words and calls, neighbouring words joined."""

    items: list[str | Call]

    @property
    def calls(self) -> list[Call]:
        return [item for item in self.items if isinstance(item, Call)]

    @property
    def text(self) -> str:
        return "".join(item for item in self.items if isinstance(item, str))


def gathered(parts: Iterable[Part]) -> Read:
    items: list[str | Call] = []
    for part in parts:
        last = items[-1] if items else None
        match part:
            case Words():
                if isinstance(last, str):
                    items[-1] = last + part.text
                else:
                    items.append(part.text)
            case CallBegin():
                items.append(Call(part.name))
            case CallPiece():
                assert isinstance(last, Call) and not last.complete
                last.arguments += part.text
            case CallEnd():
                assert isinstance(last, Call) and not last.complete
                last.complete = True
                json.loads(last.arguments)
    return Read(items)


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def read(name: str, pieces: Iterable[str], offer: Offer = OFFER, *, parallel: bool = True) -> Read:
    """What the format `name` makes of the pieces."""
    reader = CallReader(ToolUse(FORMATS[name], offer, parallel))
    parts = [part for piece in pieces for part in reader.push(piece)]
    return gathered([*parts, *reader.flush()])


def read_in_all_sizes(name: str, text: str, **options: Any) -> Read:
    """The one reading that pieces of any size give."""
    whole = read(name, [text], **options)
    for size in (1, 2, 3, 5, 8, 64):
        assert read(name, cut(text, size), **options) == whole, size
    return whole


VALUES: dict[str, Any] = {
    "city": 'São "Paulo"\n\t\\ <b>',
    "days": 3,
    "metric": True,
    "limit": -1.5,
    "tags": ["a", 1, None, {"k": []}],
    "where": {"lat": {"deg": 1.25}, "name": "x y"},
    "nothing": None,
}
JSON_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN_TEXTS = st.text(st.sampled_from('abé "\\\n {}[]:,.'), max_size=12)


# Each class that inherits a property runs it on its own: no example is shared between them.
INHERITED = settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])


class FormatTests:
    """Every format's tests inherit these and give `name`, the pieces its texts are made of, and its broken calls."""

    name: ClassVar[str]
    pieces: ClassVar[tuple[str, ...]]
    """Fragments of calls, for random texts."""
    anywhere: ClassVar[bool] = True
    """Calls may stand inside a text."""

    def write(self, arguments: dict[str, Any], tool: str = "get_weather") -> str:
        return FORMATS[self.name].write(tool, arguments)

    def test_a_call_comes_back_with_its_types(self) -> None:
        result = read_in_all_sizes(self.name, self.write(VALUES))
        (call,) = result.items
        assert isinstance(call, Call)
        assert (call.name, call.value, call.complete) == ("get_weather", VALUES, True)
        assert call.arguments == dumps(VALUES)

    def test_a_call_without_arguments(self) -> None:
        assert read_in_all_sizes(self.name, self.write({}, "now")).items == [Call("now", "{}", True)]

    def test_text_around_calls(self) -> None:
        text = f"Let me look.\n{self.write({'city': 'Oslo'})}{self.write({'days': 2})}"
        result = read_in_all_sizes(self.name, text)
        if self.anywhere:
            assert result.items[0] == "Let me look.\n"
            assert [call.value for call in result.calls] == [{"city": "Oslo"}, {"days": 2}]
        else:
            assert result.items == [text]

    def test_names_in_another_case(self) -> None:
        (call,) = read_in_all_sizes(self.name, self.write({"city": "Oslo"}, "Get_WEATHER")).items
        assert isinstance(call, Call) and call.name == "get_weather"

    def test_a_tool_that_is_not_offered_is_text(self) -> None:
        text = self.write({"city": "Oslo"}, "get_time")
        assert read_in_all_sizes(self.name, text).items == [text]

    @pytest.mark.parametrize("text", ["", " ", "Hello.", "a < b {c} [d] `e` <tool", "\n\n<|", '{"answer": [1, 2]}'])
    def test_text_is_untouched(self, text: str) -> None:
        assert read_in_all_sizes(self.name, text).text == text

    def test_a_call_cut_short_is_text(self) -> None:
        text = self.write({"city": "Oslo"})
        if FORMATS[self.name].forced.end:
            short = text[: text.index("Oslo") + 2]
            assert read_in_all_sizes(self.name, short).items == [short]

    def test_a_long_call_is_shown_while_it_is_written(self) -> None:
        text = self.write({"city": "x" * 1000})
        reader = CallReader(ToolUse(FORMATS[self.name], OFFER))
        early = [part for piece in cut(text[:600], 3) for part in reader.push(piece)]
        got = gathered(early).calls[0]
        assert got.name == "get_weather" and not got.complete
        assert len(got.arguments) > HELD and len(early) > 50
        late = [*reader.push(text[600:]), *reader.flush()]
        assert gathered([*early, *late]).items == [Call("get_weather", dumps({"city": "x" * 1000}), True)]

    def test_a_long_call_that_breaks_off_keeps_what_was_shown(self) -> None:
        text = self.write({"city": "x" * 1000})[:700]
        (call,) = read_in_all_sizes(self.name, text).items
        assert isinstance(call, Call) and not call.complete
        assert dumps({"city": "x" * 1000}).startswith(call.arguments)

    def test_one_call_alone(self) -> None:
        text = self.write({"city": "y" * HELD}) + self.write({"days": 2})
        result = read_in_all_sizes(self.name, text, parallel=False)
        if self.anywhere:
            assert result.items == [Call("get_weather", dumps({"city": "y" * HELD}), True)]
        broken = self.write({"city": "y" * 2 * HELD})[: 2 * HELD]
        assert read_in_all_sizes(self.name, broken, parallel=False).items == [broken]

    @INHERITED
    @given(st.data())
    def test_any_pieces_give_the_same(self, data: st.DataObject) -> None:
        texts = st.lists(
            st.sampled_from((*self.pieces, "x" * 300, " ", "\n", "get_weather", "now", "city")), max_size=14
        )
        text = "".join(data.draw(texts))
        if data.draw(st.booleans()):
            text = self.write({"city": "Oslo", "days": 3}) + text
        whole = read(self.name, [text])
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(self.name, pieces) == read(self.name, list(text)) == whole
        if not whole.calls:
            assert whole.text == text

    @INHERITED
    @given(st.data())
    def test_what_is_written_is_read_back(self, data: st.DataObject) -> None:
        texts = JSON_TEXTS if FORMATS[self.name].forced.syntax == "json" else PLAIN_TEXTS
        value = st.fixed_dictionaries(
            {},
            optional={
                "city": texts,
                "days": st.integers(),
                "metric": st.booleans(),
                "limit": st.floats(allow_nan=False, allow_infinity=False),
                "tags": st.lists(texts | st.booleans() | st.none(), max_size=3),
                "where": st.dictionaries(st.sampled_from(["a", "b_1"]), texts, max_size=2),
            },
        )
        arguments = data.draw(value)
        (call,) = read(self.name, cut(self.write(arguments), data.draw(st.integers(1, 9)))).items
        assert isinstance(call, Call) and call.complete
        assert call.value == arguments

    def test_the_forced_opening_is_the_start_of_a_call(self) -> None:
        form = FORMATS[self.name]
        assert form.write("now", {}).startswith(form.forced.opening("now"))
        assert form.write("now", {}).endswith(form.forced.end)
