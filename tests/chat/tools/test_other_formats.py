"""Gemma, DSML, Harmony, Mistral, Llama and bare JSON."""

import pytest

from tests.chat.tools.formats import Call
from tests.chat.tools.formats import FormatTests
from tests.chat.tools.formats import read_in_all_sizes

Q = '<|"|>'
D = "｜DSML｜"


class TestGemma(FormatTests):
    name = "gemma"
    pieces = ("<|tool_call>", "<tool_call|>", "call:", "{", "}", ":", ",", Q, "[", "]", "days", "3", "<|")


class TestDsml(FormatTests):
    name = "dsml"
    pieces = (
        f"<{D}tool_calls>", f"</{D}tool_calls>", f'<{D}invoke name="', '">', f"</{D}invoke>", f'<{D}parameter name="',
        '" string="true">', '" string="false">', f"</{D}parameter>", f"<{D}",
    )  # fmt: skip


class TestHarmony(FormatTests):
    name = "harmony"
    pieces = (
        "<|channel|>commentary to=functions.",
        " <|constrain|>json",
        "<|message|>",
        "<|call|>",
        "{",
        "}",
        '"',
        ":",
    )


class TestMistral(FormatTests):
    name = "mistral"
    pieces = (
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[",
        "]",
        '{"name": "',
        '", "arguments": {',
        "}",
        '"',
        ",",
        "[TOOL",
    )


class TestLlama(FormatTests):
    name = "llama"
    anywhere = False
    pieces = ("<|python_tag|>", '{"name": "', '", "parameters": {', "}", '"', ";", ",", "```")


class TestBareJson(FormatTests):
    name = "json"
    anywhere = False
    pieces = ("```json\n", "```", "[", "]", '{"name": "', '", "arguments": {', "}", '"', ",", '{"a')


OSLO = Call("get_weather", '{"city":"Oslo"}', True)
NOW = Call("now", "{}", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma", f"<|tool_call>call:get_weather{{city:{Q}Oslo{Q}}}<tool_call|>"),
        ("gemma", f"<|tool_call>call:get_weather{{ {Q}city{Q} : {Q}Oslo{Q} }}"),
        ("gemma", '<|tool_call>call:get_weather{"city":"Oslo"}<tool_call|>'),
        (
            "dsml",
            f'<{D}function_calls><{D}invoke name="get_weather"><{D}parameter name="city">Oslo</{D}parameter>'
            f"</{D}invoke></{D}function_calls>",
        ),
        ("harmony", '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}'),
        ("harmony", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Oslo"}<|call|>'),
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]'),
        ("mistral", '[TOOL_CALLS]{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'),
        ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}'),
        ("mistral", '[TOOL_CALLS]get_weather{"city": "Oslo"}'),
        ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}'),
        ("llama", '\n{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}\n'),
        ("llama", '<function=get_weather>{"city": "Oslo"}</function>'),
        ("json", '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```\n'),
        ("json", '```\n[{"name": "get_weather", "arguments": {"city": "Oslo"}}]```'),
        ("hermes", '{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
        ("gemma", ' {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}'),
    ],
)
def test_spellings_of_one_call(name: str, text: str) -> None:
    assert read_in_all_sizes(name, text).items == [OSLO]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma", "<|tool_call>call:get_weather<tool_call|>"),
        ("gemma", "<|tool_call>get_weather{}<tool_call|>"),
        ("gemma", "<|tool_call>call:get_weather{city:Oslo}<tool_call|>"),
        ("gemma", "<|tool_call>call:get_weather{:1}<tool_call|>"),
        ("gemma", "<|tool_call>call:now{} or so"),
        ("dsml", f"<{D}tool_calls></{D}tool_calls>"),
        (
            "dsml",
            f'<{D}tool_calls><{D}invoke name="get_weather"><{D}parameter name="city" string="no">x</{D}parameter>',
        ),
        ("dsml", f'<{D}tool_calls><{D}invoke name="get_weather">city</{D}invoke></{D}tool_calls>'),
        ("harmony", "<|channel|>commentary to=functions.get_weather<|message|>Oslo<|call|>"),
        ("harmony", "<|channel|>commentary to=functions.get_weather {}"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>{}!<|call|>"),
        ("harmony", '{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]Oslo"),
        ("mistral", "[TOOL_CALLS][]"),
        ("llama", '<|python_tag|>search.call(query="Oslo")'),
        ("json", '{"name": "get_weather", "arguments": {"city": "Oslo"}} That was it.'),
        ("json", '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```\nThat was it.'),
        ("json", '{"name": "get_weather"}'),
        ("json", '{"name": "Oslo", "arguments": {}}'),
        ("json", '{"city": "Oslo", "name": "get_weather", "arguments": {}}'),
        ("json", '[{"name": "get_weather", "arguments": {}} {}]'),
        ("json", "[1, 2]"),
        ("json", "```json\n"),
    ],
)
def test_what_is_broken_stays_text(name: str, text: str) -> None:
    assert read_in_all_sizes(name, text).items == [text]


def test_several_calls_in_one_block() -> None:
    block = (
        f'<{D}tool_calls>\n<{D}invoke name="now">\n</{D}invoke>\n<{D}invoke name="now"></{D}invoke>\n</{D}tool_calls>'
    )
    assert read_in_all_sizes("dsml", block).items == [NOW, NOW]
    cut_short = block[: block.rindex(f"</{D}invoke>")]
    assert read_in_all_sizes("dsml", cut_short).items[0] == NOW
    mistral = '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'
    assert read_in_all_sizes("mistral", mistral).items == [NOW, NOW]
    newer = "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}"
    assert read_in_all_sizes("mistral", newer).items == [NOW, NOW]
    llama = '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'
    assert read_in_all_sizes("llama", llama).items == [NOW, NOW]
    assert read_in_all_sizes("llama", "<|python_tag|>" + llama).items == [NOW, NOW]
    bare = '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'
    assert read_in_all_sizes("json", bare).items == [NOW, NOW]


def test_dsml_says_itself_what_is_a_string() -> None:
    def parameter(name: str, string: str, text: str) -> str:
        return f'<{D}parameter name="{name}" string="{string}">{text}</{D}parameter>'

    inside = parameter("days", "true", "3") + parameter("either", "false", "[1]") + parameter("unknown", "false", "x")
    block = f'<{D}tool_calls><{D}invoke name="get_weather">{inside}</{D}invoke></{D}tool_calls>'
    (call,) = read_in_all_sizes("dsml", block).calls
    assert call.value == {"days": "3", "either": [1], "unknown": "x"}
