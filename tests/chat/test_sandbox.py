import threading
from collections.abc import Mapping
from typing import Any

import pytest
from jinja2 import TemplateError

from jaxfold.chat.sandbox import RenderBudget
from jaxfold.chat.sandbox import RenderLimitError
from jaxfold.chat.sandbox import TemplateSandbox


def render(source: str, variables: Mapping[str, Any] | None = None, seconds: float = 5.0, work: int = 1 << 20) -> str:
    sandbox = TemplateSandbox()
    return sandbox.render(sandbox.from_string(source), variables or {}, RenderBudget(seconds, work), 1 << 16)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(6) if i % 2 %}{{ loop.index }}:{{ i }} {% endfor %}", "1:1 2:3 3:5 "),
        ("{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "none"),
        ("{% macro m(a, b=2) %}{{ a ~ '-' ~ b }}{% endmacro %}{{ m(1) }} {{ m('x', b=none) }}", "1-2 x-None"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}", "<in>"),
        ("{% for n in tree recursive %}{{ n.v }}{{ loop(n.c) if n.c }}{% endfor %}", "12"),
        ("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6"),
        ("{{ ['a', 'b'] | join(', ') }}{{ ', '.join(['c', 'd']) }}", "a, bc, d"),
        ("{{ people | map(attribute='name') | join('+') }}", "Ann+Bo"),
        ("{{ people | join('+', attribute='name') }} {{ people | sum('age') }}", "Ann+Bo 5"),
        ("{{ 'a-b' | replace('-', '+') }}{{ 'a-b'.replace('-', '*') }}", "a+ba*b"),
        ("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent('> ', true) }}", "a\n  b\n\n  c|> a\n> b"),
        ("{{ '%s=%d' | format('k', 3) }} {{ '%05.1f' % 2.5 }} {{ '{:>3}'.format(7) }}", "k=3 002.5   7"),
        ("{{ 'ab' * 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] + [2] }}", "abab10243[1, 2]"),
        ("{% generation %}{{ 'body' }}{% endgeneration %}", "body"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ nothing }}|{{ 'yes' if nothing is defined else 'no' }}", "|no"),
    ],
)
def test_templates_mean_what_they_mean_in_jinja(source: str, text: str) -> None:
    people = [{"name": "Ann", "age": 2}, {"name": "Bo", "age": 3}]
    assert render(source, {"people": people, "tree": [{"v": 1, "c": [{"v": 2, "c": []}]}]}) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) if false %}{% endfor %}{% endfor %}",
        "{% set t %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}{% endset %}",
        "{% for i in range(90000) %}{{ range(90000) | map('string') | select('none') | list }}{% endfor %}",
        "{% for i in range(90000) if range(90000) | sum < 0 %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_loops_are_stopped(source: str) -> None:
    with pytest.raises(RenderLimitError, match=r"seconds|more text|output"):
        render(source, seconds=0.1)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 10 ** 99999 }}",
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set ns = namespace(s='xxxx') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = ns.s.replace('x', ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s | replace('', ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = ''.join([ns.s, ns.s]) %}{% endfor %}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a\nb' | indent(10 ** 9) }}",
        "{% for i in range(90000) %}{{ 'x' * 100 }}{% endfor %}",
        "{% set t %}{% for i in range(90000) %}{{ 'x' * 100 }}{% endfor %}{% endset %}{{ t }}",
    ],
)
def test_large_values_are_stopped_before_they_are_made(source: str) -> None:
    with pytest.raises(RenderLimitError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x'.expandtabs(9) }}",
        "{{ 'x'.encode() }}",
        "{{ lipsum() }}",
        "{% include 'other' %}",
        "{{ [[1]] | sum(start=[]) }}",
    ],
)
def test_unsafe_and_useless_features_fail(source: str) -> None:
    with pytest.raises((TemplateError, TypeError)):
        render(source, {"messages": [1]})


def test_it_works_in_threads_at_once() -> None:
    sandbox = TemplateSandbox()
    template = sandbox.from_string("{% for i in range(n) %}{{ i % 10 }}{% endfor %}")
    results: dict[int, str] = {}

    def work(n: int) -> None:
        try:
            results[n] = sandbox.render(template, {"n": n}, RenderBudget(5.0, 2000), 1000)
        except RenderLimitError as error:
            results[n] = str(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (0, 12, 99_999)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: "", 12: "012345678901", 99_999: "its output is longer than 1000 characters"}
