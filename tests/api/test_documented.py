"""The last tables of docs/api.md: every route and field is in them, and the tests that they name exist."""

import ast
import re
from functools import cache
from pathlib import Path

from jaxfold.api.access.admission import route_name
from jaxfold.api.anthropic.fields import FIELDS as ANTHROPIC_FIELDS
from jaxfold.api.app import create_app
from jaxfold.api.http.known_fields import INERT
from jaxfold.api.http.known_fields import SUPPORTED
from jaxfold.api.ollama.fields import FIELDS as OLLAMA_FIELDS
from jaxfold.api.responses.fields import FIELDS as RESPONSES_FIELDS
from jaxfold.api.settings import ApiSettings

ROOT = Path(__file__).parents[2]
HEADING = "## What every route and field does, and the test that covers it"


@cache
def written() -> frozenset[str]:
    """Everything between backticks below the heading."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    _, _, tables = page.partition(HEADING)
    return frozenset(re.findall(r"`([^`\n]+)`", tables))


def test_every_route_is_in_the_table() -> None:
    rules = create_app(None, ApiSettings(model="x", webui=True)).url_map.iter_rules()
    served = {(method, route_name(rule.rule)) for rule in rules for method in (rule.methods or set())}
    wanted = {f"{method} {name}" for method, name in served if method not in ("HEAD", "OPTIONS")}
    assert wanted
    assert wanted - written() == set()
    named = {one for one in written() if re.match(r"(GET|POST|DELETE) /", one)}
    assert named - wanted == set()


def test_every_field_is_in_the_table() -> None:
    tables = (*SUPPORTED.values(), *OLLAMA_FIELDS.values(), INERT)
    own = (ANTHROPIC_FIELDS.supported, ANTHROPIC_FIELDS.inert, RESPONSES_FIELDS.supported, RESPONSES_FIELDS.inert)
    assert {name for table in (*tables, *own) for name in table} - written() == set()


def test_every_test_that_is_named_exists() -> None:
    named = [one.split("::") for one in written() if "::" in one]
    assert len(named) > 50
    for file, function in named:
        path = ROOT / file if "/" in file else ROOT / "tests" / "api" / file
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, function)
