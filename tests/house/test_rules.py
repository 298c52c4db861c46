"""Size limits, imports and state, over every file; and that each rule catches what it is for."""

import ast
from collections.abc import Callable
from collections.abc import Iterator

import pytest

from tests.house import rules
from tests.house.sources import Source
from tests.house.sources import python_sources

Rule = Callable[[Source], Iterator[str]]

EVERY_RULE: tuple[Rule, ...] = (
    rules.file_size,
    rules.function_size,
    rules.star_import,
    rules.module_docstring,
    rules.module_state,
    rules.jit_inside,
)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.__name__)
def test_every_source_keeps_the_rule(rule: Rule) -> None:
    complaints = [complaint for source in python_sources() for complaint in rule(source)]
    assert not complaints, "\n" + "\n".join(complaints)


def source(text: str, name: str = "jaxfold/thing.py") -> Source:
    return Source(name, text, ast.parse(text))


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 60
BROKEN: tuple[tuple[Rule, str], ...] = (
    (rules.file_size, "x = 1\n" * 501),
    (rules.function_size, LONG_FUNCTION),
    (rules.function_size, LONG_FUNCTION.replace("def", "async def")),
    (rules.star_import, "from os import *"),
    (rules.module_docstring, "x = 1"),
    (rules.module_state, "cache = {}"),
    (rules.module_state, "CACHE = {}"),
    (rules.module_state, "_seen: set[int] = set()"),
    (rules.module_state, "if True:\n    table = [1]"),
    (rules.module_state, "TABLE = [1]\ndef f():\n    TABLE.append(2)"),
    (rules.module_state, "TABLE = {1: 2}\ndef f():\n    TABLE[3] = 4"),
    (rules.module_state, "TABLE = {1: 2}\ndef f():\n    del TABLE[1]"),
    (rules.module_state, "queue = collections.deque()"),
    (rules.module_state, "x = 1\ndef f():\n    global x\n    x = 2"),
    (rules.module_state, "import functools\n@functools.cache\ndef f(x): return x"),
    (rules.module_state, "@lru_cache(maxsize=None)\ndef f(x): return x"),
    (rules.jit_inside, "import jax\ndef f(g): return jax.jit(g)"),
    (rules.jit_inside, "from jax import jit"),
    (rules.jit_inside, "import functools, jax\n@functools.partial(jax.jit, static_argnums=0)\ndef f(x): return x"),
)


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_a_rule_catches_its_fault(rule: Rule, text: str) -> None:
    assert len(list(rule(source(text)))) == 1


FINE: tuple[tuple[Rule, Source], ...] = (
    (rules.file_size, source("x = 1\n" * 700, "pallas_kernels/thing.py")),
    (rules.function_size, source("@decorate(\n" + "    1,\n" * 60 + ")\ndef f(): pass")),
    (rules.module_docstring, source("")),
    (rules.module_docstring, source("x = 1", "jaxfold/_private.py")),
    (rules.module_docstring, source("x = 1", "scripts/thing.py")),
    (rules.module_state, source('TABLE = {"a": 1}\n__all__ = ["f"]\ndef f():\n    local = []\n    local.append(1)')),
    (rules.module_state, source("@functools.lru_cache(maxsize=8)\ndef f(x): return x")),
    (rules.module_state, source("cache = {}", "tests/thing.py")),
    (rules.jit_inside, source("import jax\nf = jax.jit(abs)", "jaxfold/runtime/programs.py")),
    (rules.jit_inside, source("import jax\nf = jax.jit(abs)", "jaxfold/runtime/programs/table.py")),
    (rules.jit_inside, source("import jax\nf = jax.jit(abs)", "scripts/thing.py")),
)


@pytest.mark.parametrize(("rule", "fine"), FINE)
def test_a_rule_leaves_good_code_alone(rule: Rule, fine: Source) -> None:
    assert not list(rule(fine))
