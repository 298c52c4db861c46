"""--config: what a file may say, who wins, and every way to get it wrong."""

from pathlib import Path
from typing import Any

import click
import pytest

from jaxfold.cli.serve import serve


def params(path: Path, text: str, *arguments: str) -> dict[str, Any]:
    path.write_text(text)
    return dict(serve.make_context("serve", ["--config", str(path), *arguments]).params)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serve.json"


def test_a_file_of_options(path: Path) -> None:
    found = params(
        path,
        """{
          // Comments, also /* in one line */, are fine; "// inside a text" is none.
          "variables": {"root": "/models"},
          "model": "${root}/a//b.gguf",
          "max-tokens": 500, "top_p": 0.5, "webui": false, "strict-model": true, /* more */
          "alias": ["one", "two"], "stop": "a single // text", "port": 9000, "name": null
        }""",
    )
    assert found["model"] == "/models/a//b.gguf"
    assert (found["max_tokens"], found["top_p"], found["webui"], found["strict_model"]) == (500, 0.5, False, True)
    assert (found["alias"], found["stop"], found["port"]) == (("one", "two"), ("a single // text",), 9000)
    assert found["name"] is None and "config" not in found


def test_the_command_line_wins_then_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"model": "m", "port": 9000, "max-tokens": 500, "top-k": 3}'
    monkeypatch.setenv("JAXFOLD_MAX_TOKENS", "600")
    found = params(path, text, "other", "--port", "7000")
    assert (found["model"], found["port"], found["max_tokens"], found["top_k"]) == ("other", 7000, 600, 3)


def test_the_file_may_be_named_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('{"model": "m", "port": 9000}')
    monkeypatch.setenv("JAXFOLD_CONFIG", str(path))
    assert serve.make_context("serve", []).params["port"] == 9000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "one JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"prot": 1}', 'did you mean "port"'),
        ('{"max_tokns": 1}', 'did you mean "max-tokens"'),
        ('{"config": "x"}', "no option called"),
        ('{"port": "many"}', "--port"),
        ('{"port": 1.5}', "--port"),
        ('{"port": true}', "--port"),
        ('{"port": [1]}', '"port" must be'),
        ('{"webui": 3}', "--webui"),
        ('{"model": {"path": "x"}}', '"model" must be'),
        ('{"model": "${root}/x"}', "variable ${root}"),
        ('{"variables": {"a": 1}}', "object of texts"),
        ('{"variables": []}', "object of texts"),
    ],
)
def test_files_that_are_wrong(path: Path, text: str, words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        params(path, text, "m")
    assert words in caught.value.format_message()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="No such file"):
        serve.make_context("serve", ["--config", str(tmp_path / "nothing.json"), "m"])
