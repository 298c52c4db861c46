"""The formats inside <tool_call> tags: Hermes, Qwen's XML, GLM's pairs; each is read in the others' notation too."""

import pytest

from tests.chat.tools.formats import Call
from tests.chat.tools.formats import FormatTests
from tests.chat.tools.formats import read_in_all_sizes

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NOW = Call("now", "{}", True)
NAMES = ("hermes", "qwen-xml", "glm")


class TestHermes(FormatTests):
    name = "hermes"
    pieces = (OPEN, CLOSE, '{"name": "', '", "arguments": {', '"city": "', '"', "}", "{", "[", ",", "<tool_", "```")


class TestQwenXml(FormatTests):
    name = "qwen-xml"
    pieces = (OPEN, CLOSE, "<function=", ">", "<parameter=", "</parameter>", "</function>", "</param", "\n</")


class TestGlm(FormatTests):
    name = "glm"
    pieces = (OPEN, CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "days", "</arg_")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>', '{"city":"Oslo"}'),
        ('<tool_call>\n{"name":"get_weather","parameters":{ "days" : 1.50 }}\n</tool_call>', '{"days":1.50}'),
        ('<tool_call>{"args": {"a": 1}, "name": "get_weather"}</tool_call>', '{"a":1}'),
        ('<tool_call>{"function": "get_weather", "args": {}}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather"}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather", "arguments": null}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather", "arguments": "{\\"a\\": [1]}"}</tool_call>', '{"a":[1]}'),
        ('<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {}}}</tool_call>', "{}"),
        ('<tool_call>{"id": 3, "name": "get_weather", "arguments": {"a": {}}}</tool_call>', '{"a":{}}'),
        ('<tool_call>{"name": "get_weather", "arguments": {"a": True, "b": None}}</tool_call>', '{"a":true,"b":null}'),
        ('<tool_call>{"name": "get_weather", "arguments": {"a": "two\nlines"}}</tool_call>', '{"a":"two\\nlines"}'),
        ('<tool_call>{"name": "get_weather", "arguments": {"a": "\\u00e9\\n"}}</tool_call>', '{"a":"\\u00e9\\n"}'),
        ('<TOOL_CALL>{"name": "get_weather", "arguments": {}}</TOOL_CALL>', "{}"),
        ('<minimax:tool_call>{"name": "get_weather", "arguments": {}}</minimax:tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather", "arguments": {"a": 1}}', '{"a":1}'),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}\n', '{"a":1}'),
        ('<tool_call>[{"name": "get_weather", "arguments": {"a": 1}}]</tool_call>', '{"a":1}'),
        ('<tool_calls>[{"name": "get_weather", "arguments": {}}]</tool_calls>', "{}"),
        ('<TOOLCALL>[{"name": "get_weather", "arguments": {}}]</TOOLCALL>', "{}"),
        ('<function=get_weather>{"a": 1}</function>', '{"a":1}'),
        ("<function=get_weather></function>", "{}"),
        (
            "<tool_call><function=get_weather><parameter=city>\n Oslo\n\n</parameter></function></tool_call>",
            '{"city":" Oslo\\n"}',
        ),
        ("<tool_call><function=get_weather><parameter=city>7</parameter></function></tool_call>", '{"city":"7"}'),
        ("<tool_call>get_weather</tool_call>", "{}"),
        ("<tool_call>get_weather<arg_key>days</arg_key><arg_value>4</arg_value></tool_call>", '{"days":4}'),
        ("<tool_call>get_weather\ndays</arg_key><arg_value>4</arg_value></tool_call>", '{"days":4}'),
    ],
)
def test_spellings_of_one_call(name: str, text: str, arguments: str) -> None:
    assert read_in_all_sizes(name, text).items == [Call("get_weather", arguments, True)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>the weather</tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}} and more</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"a": "\\x"}}</tool_call>',
        "<tool_call>{'name': 'get_weather', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": ' + '{"a":' * 200 + "1" + "}" * 201 + "</tool_call>",
        "<tool_call><function=get_weather><parameter=city>Oslo</function></tool_call>",
        "<tool_call><function=get_weather>Oslo</function></tool_call>",
        "<tool_call><function=get_weather><parameter=city>Oslo</parameter>",
        "<tool_call><function=other></function></tool_call>",
        '<function=get_weather>{"a": 1}',
        "<tool_call><function=get_weather><parameter=city>a</parameter><parameter=city>b</parameter></function></tool_call>",
        "<function=" + "x" * 600 + "></function>",
        "<tool_call>get_weather<arg_key>days</arg_key>4</tool_call>",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>4</arg_value>",
        "<other:thing><tool_cal>",
    ],
    ids=lambda text: text[:70],
)
def test_what_is_broken_stays_text(name: str, text: str) -> None:
    result = read_in_all_sizes(name, text)
    if len(text) < 300:
        assert result.items == [text]
    assert not any(call.complete for call in result.calls)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_call_does_not_hide_the_next(name: str) -> None:
    good = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for bad in ("I could use <tool_call> here: ", '<tool_call>{"name": "no"}</tool_call>', '<tool_call>{"name": oh'):
        assert read_in_all_sizes(name, bad + good).items == [bad, NOW]
    assert read_in_all_sizes(name, good + " and " + good).items == [NOW, " and ", NOW]
    two = '<tool_call>{"name": "now"}\n{"name": "now"}</tool_call>'
    assert read_in_all_sizes(name, two).items == [NOW, NOW]
    half = '<tool_call>[{"name": "now"}, {"name": "no"}]</tool_call>'
    assert read_in_all_sizes(name, half).items[0] == NOW


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("days", "3", "3"),
        ("days", " 3 ", "3"),
        ("days", "3.0", "3.0"),
        ("days", "3.5", '"3.5"'),
        ("days", "true", '"true"'),
        ("days", "three", '"three"'),
        ("days", "", '""'),
        ("limit", "1e3", "1e3"),
        ("limit", "nan", '"nan"'),
        ("limit", '"1"', '"\\"1\\""'),
        ("metric", "true", "true"),
        ("metric", "False", "false"),
        ("metric", "0", '"0"'),
        ("nothing", "None", "null"),
        ("nothing", "null", "null"),
        ("nothing", "none", '"none"'),
        ("tags", "[1, 2]", "[1,2]"),
        ("tags", "[1, [2]", "[1,[2]]"),
        ("tags", '["a", "b"', '["a","b"]'),
        ("tags", "[1", "[1]"),
        ("tags", "[[1", '"[[1"'),
        ("tags", "{}", '"{}"'),
        ("where", '{"a": {"b": True}}', '{"a":{"b":true}}'),
        ("where", '{"a": {"b": 1}', '{"a":{"b":1}}'),
        ("where", "[]", '"[]"'),
        ("city", "[1]", '"[1]"'),
        ("city", "null", '"null"'),
        ("either", "3", '"3"'),
        ("unknown", "3", '"3"'),
    ],
)
def test_parameters_have_the_types_of_the_schema(parameter: str, text: str, value: str) -> None:
    arguments = f'{{"{parameter}":{value}}}'
    xml = f"<tool_call><function=get_weather><parameter={parameter}>\n{text}\n</parameter></function></tool_call>"
    pairs = f"<tool_call>get_weather<arg_key>{parameter}</arg_key><arg_value>{text}</arg_value></tool_call>"
    for written in (xml, pairs):
        assert read_in_all_sizes("qwen-xml", written).items == [Call("get_weather", arguments, True)]
