import pytest

from jaxfold.chat.tools.offer import Offer
from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.tools.registry import find_format

HERMES_LIKE = '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'


@pytest.mark.parametrize(
    ("template", "shows_tools", "vocabulary", "name"),
    [
        (HERMES_LIKE, True, (), "hermes"),
        ("<tool_call>\\n<function=example>\\n<parameter=one>", True, ("<tool_call>",), "qwen-xml"),
        ("<tool_call>{name}<arg_key>{key}</arg_key>", True, (), "glm"),
        ("<|tool_call>call:{{ name }}", True, (), "gemma"),
        ("<｜DSML｜tool_calls>", True, (), "dsml"),
        ("<|start|>{{ role }}<|channel|>final<|message|>", True, (), "harmony"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", True, (), "mistral"),
        ('<|start_header_id|>ipython<|end_header_id|> {"name": f, "parameters": d}', True, (), "llama"),
        ("{% if builtin %}<|python_tag|>{% endif %}", True, (), "llama"),
        ("{{ tools | tojson }}", True, (), "json"),
        ("{{ tools | tojson }}", True, ("[TOOL_CALLS]",), "mistral"),
        ("{{ tools | tojson }}", True, ("<|tool_call>",), "gemma"),
        ("{{ messages }}", False, (), "hermes"),
        ("{{ messages }}", False, ("[TOOL_CALLS]",), "hermes"),
        (None, False, (), "hermes"),
    ],
)
def test_the_template_tells_the_format(
    template: str | None, shows_tools: bool, vocabulary: tuple[str, ...], name: str
) -> None:
    assert find_format(template, shows_tools, vocabulary) is FORMATS[name]


def test_every_format_goes_by_its_name() -> None:
    assert {name: form.name for name, form in FORMATS.items()} == {name: name for name in FORMATS}
    assert len(FORMATS) == 9


@pytest.mark.parametrize(
    ("name", "opening", "syntax"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": ', "json"),
        ("qwen-xml", "<tool_call>\n<function=f>\n", "qwen_xml"),
        ("glm", "<tool_call>f\n", "glm_xml"),
        ("gemma", "<|tool_call>call:f", "gemma"),
        ("dsml", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n', "dsml"),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "json"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": ', "json"),
        ("llama", '{"name": "f", "parameters": ', "json"),
        ("json", '{"name": "f", "arguments": ', "json"),
    ],
)
def test_what_forces_a_call(name: str, opening: str, syntax: str) -> None:
    forced = FORMATS[name].forced
    assert (forced.opening("f"), forced.syntax) == (opening, syntax)


def test_tokens_that_stay_in_the_text() -> None:
    vocabulary = {"<|tool_call>": 7, '<|"|>': 9, "<|turn>": 11}
    assert FORMATS["gemma"].shown(vocabulary) == {7, 9}
    assert FORMATS["json"].shown(vocabulary) == frozenset()


def test_an_offer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["integer"]}, "c": True}}
    offer = Offer(
        [{"function": {"name": "Add", "parameters": schema}}, {"name": "add"}, {"name": "x", "parameters": None}]
    )
    assert offer.names == ("Add", "add", "x")
    assert [offer.find(name) for name in ("Add", "add", "ADD", "X", "y")] == ["Add", "add", "Add", "x", None]
    assert offer.schema("Add") is schema
    assert offer.schema("x") == {"type": "object"}
    assert [offer.kind("Add", key) for key in ("a", "b", "c", "d")] == ["integer", None, None, None]
    odd = Offer(
        [
            {"name": "f", "parameters": {"properties": [1]}},
            {"name": "g", "parameters": {"properties": {"a": {"type": "any"}}}},
        ]
    )
    assert odd.kind("f", "a") is None
    assert odd.kind("g", "a") is None
