"""What is found out about templates, and that conversations reach the ones that are hard to please."""

from typing import Any

import pytest

from jaxfold.chat.messages import TemplateTraits
from jaxfold.chat.template import ChatTemplate
from jaxfold.chat.types import Message
from jaxfold.chat.types import RequestError
from jaxfold.chat.types import ToolCall
from tests.byte_tokenizer import ByteTokenizer
from tests.chat import templates

TOKENIZER = ByteTokenizer()
CALL = ToolCall("call_1", "add", {"a": 1})
USER, MORE = Message("user", "first"), Message("user", "second")
ASKED, TOLD = Message("assistant", "", tool_calls=(CALL,)), Message("tool", "42", tool_call_id="call_1")

# The last system text of the conversation takes the place of all before it.
REPLACING = """\
{%- set ns = namespace(system='') %}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content %}{% endfor %}
{{- ns.system }}
{%- for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"""

# Turns of user and assistant must alternate; calls and results do not count.
COUNTING = """\
{{- tools | tojson if tools }}
{%- set ns = namespace(at=0) %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
        {%- if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}
        {%- set ns.at = ns.at + 1 %}
    {%- endif %}
    {%- if m.tool_calls %}{% for c in m.tool_calls %}({{ c.function | tojson }}){% endfor %}
    {%- else %}{{ m.role }}:{{ m.content }};{% endif %}
{%- endfor %}"""

# Besides, an assistant has to say something.
FUSSY = (
    """\
{%- for m in messages if m.role == 'assistant' and not (m.content or m.tool_calls) %}
    {{- raise_exception('empty') }}
{%- endfor %}"""
    + COUNTING
)

# A turn with words shows only these.
WORDS_FIRST = """\
{{- tools | tojson if tools }}
{%- for m in messages %}{{ m.role }}:
    {%- if m.content %}{{ m.content }}
    {%- else %}{% for c in m.tool_calls %}({{ c.function | tojson }}){% endfor %}{% endif %}
{%- endfor %}"""


def traits(source: str) -> TemplateTraits:
    return ChatTemplate(source, TOKENIZER).traits


def render(source: str, *messages: Message) -> str:
    return ChatTemplate(source, TOKENIZER).render(messages).text


def test_ordinary_templates() -> None:
    assert traits(templates.CHATML) == TemplateTraits()
    assert traits(templates.PLAIN_CHATML) == TemplateTraits(tools=False, calls=False, results=False)
    strict = traits(templates.STRICT)
    assert (strict.leading_system, strict.late_system, strict.user_runs) == (True, False, False)
    assert traits("{{ raise_exception('no') }}") == TemplateTraits()


def test_a_late_system_text_must_not_take_the_place_of_the_first() -> None:
    assert not traits(REPLACING).late_system
    text = render(
        REPLACING, Message("system", "lead"), USER, Message("assistant", "x"), Message("system", "late"), MORE
    )
    assert text.startswith("lead") and "user:late;" in text


@pytest.mark.parametrize(("source", "bridge"), [(COUNTING, ""), (FUSSY, "...")])
def test_a_user_who_goes_on_after_a_result(source: str, bridge: str) -> None:
    assert traits(source).bridge == bridge
    text = render(source, USER, ASKED, TOLD, MORE)
    assert f"tool:42;assistant:{bridge};user:second;" in text
    assert "assistant" not in render(source, USER, ASKED, TOLD)
    late = render(source, USER, ASKED, TOLD, Message("system", "late"), MORE)
    assert f"tool:42;assistant:{bridge};system:late;user:second;" in late
    with pytest.raises(RequestError, match="turns must alternate"):
        render(source, USER, MORE)


def test_calls_of_a_turn_with_words() -> None:
    assert (traits(WORDS_FIRST).calls, traits(WORDS_FIRST).calls_beside_text) == (True, False)
    spoken = Message("assistant", "Let me see.", tool_calls=(CALL,))
    text = render(WORDS_FIRST, USER, spoken, TOLD, Message("assistant", "ok"), MORE, ASKED, TOLD)
    assert 'Let me see.\n{"name": "add", "arguments": {"a":1}}' in text
    assert '({"name": "add", "arguments": {"a": 1}})' in text


@pytest.mark.parametrize("source", [COUNTING, FUSSY, WORDS_FIRST, REPLACING, templates.CHATML, templates.STRICT])
def test_an_interrupted_call_never_ends_a_conversation(source: str) -> None:
    broken: Any = ToolCall("call_x", "write_file", {"_raw": '{"text": "he said '})
    asked = Message("assistant", "", tool_calls=(broken,))
    text = render(source, USER, asked, Message("tool", "not run", tool_call_id="call_x"), MORE)
    assert all(part in text for part in ("first", "write_file", "he said", "not run", "second"))
