"""The project's own files agree with each other: licence, version, commands, flags, links, environment variables."""

import ast
import importlib.metadata
import re
import tomllib

import click
import pytest

from jaxfold.cli.app import COMMANDS
from jaxfold.cli.app import cli
from jaxfold.cli.environment import OTHER_VARIABLES
from jaxfold.cli.environment import TEST_PREFIX
from jaxfold.cli.environment import known_variables
from tests.house.sources import ROOT
from tests.house.sources import files
from tests.house.sources import python_sources
from tests.house.sources import text_of

CODE_BLOCK = re.compile(r"```.*?\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")


def documents() -> list[str]:
    return [name for name in files() if name.endswith(".md")]


def commands_in(name: str) -> list[str]:
    """Every line of code in a document, inline or in a block."""
    text = text_of(name) or ""
    blocks = [line.strip() for block in CODE_BLOCK.findall(text) for line in block.splitlines()]
    return blocks + INLINE.findall(CODE_BLOCK.sub("", text))


def project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def test_licence_and_notice() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "jaxfold" in (ROOT / "NOTICE").read_text()
    assert project()["license"] == "Apache-2.0"


def test_one_version_everywhere() -> None:
    version = project()["version"]
    newest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest.group(1) == version
    assert importlib.metadata.version("jaxfold") == version, "run `make setup` again"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        (name, target)
        for name in documents()
        for command in commands_in(name)
        for target in re.findall(r"^make ([a-z]+)", command)
    }
    assert used and not {(name, target) for name, target in used if target not in targets}


def jaxfold_lines() -> list[tuple[str, str, str]]:
    """(document, subcommand, line) for each `jaxfold ...` command line in a document."""
    found = []
    for name in documents():
        for command in commands_in(name):
            if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?jaxfold ([a-z]+)\b", command):
                found.append((name, match.group(1), command))
    return found


def test_jaxfold_commands_in_documents_exist() -> None:
    lines = jaxfold_lines()
    assert lines and not [line for line in lines if line[1] not in COMMANDS]


def test_flags_in_documents_exist() -> None:
    context = click.Context(cli)
    wrong = []
    for name, command, line in jaxfold_lines():
        loaded = cli.get_command(context, command)
        assert loaded is not None
        known = {flag for parameter in loaded.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        wrong += [
            (name, line, flag) for flag in re.findall(r"(?<=\s)--[a-z][a-z-]*", line) if flag not in known | {"--help"}
        ]
    assert not wrong


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for name in documents():
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(name) or ""):
            if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                broken.append((name, target))
    assert not broken


def test_every_environment_variable_is_known() -> None:
    """Each JAXFOLD_ name in the code is an option's or listed, so that a misspelt one can be told from a real one."""
    context = click.Context(cli)
    known = set(known_variables(cli, context)) | OTHER_VARIABLES
    unknown = set()
    for source in python_sources():
        if not source.in_package:
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = re.findall(r"\bJAXFOLD_[A-Z0-9_]+\b", node.value)
                unknown |= {(source.name, n) for n in names if n not in known and not n.startswith(TEST_PREFIX)}
    assert not unknown


@pytest.mark.parametrize("name", ["slow", "real_model"])
def test_markers_are_registered(name: str, pytestconfig: pytest.Config) -> None:
    assert any(line.startswith(f"{name}:") for line in pytestconfig.getini("markers"))


def test_ci_runs_what_make_test_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    calls = [line for line in script.splitlines() if line.startswith("make ")]
    assert [call.split()[1] for call in calls] == ["setup", "check", "test"]
