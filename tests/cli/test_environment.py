"""JAXFOLD_<OPTION> below the flags, HOST and PORT below both; booleans are strict; unknown names are told."""

import click
import pytest

from jaxfold.cli.environment import unknown_variables
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import Switch
from jaxfold.cli.serve import serve
from tests.cli.conftest import Run


def parsed(*arguments: str) -> dict[str, object]:
    return dict(serve.make_context("serve", ["m", *arguments]).params)


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parsed()["host"], parsed()["port"]) == ("127.0.0.1", 8080)
    monkeypatch.setenv("HOST", "low.example")
    monkeypatch.setenv("PORT", "1111")
    assert (parsed()["host"], parsed()["port"]) == ("low.example", 1111)
    monkeypatch.setenv("JAXFOLD_PORT", "2222")
    assert (parsed()["host"], parsed()["port"]) == ("low.example", 2222)
    assert parsed("--port", "3333")["port"] == 3333


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXFOLD_PORT", "")
    monkeypatch.setenv("PORT", "")
    assert parsed()["port"] == 8080


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE", " Yes "])
def test_true_words(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("JAXFOLD_STRICT_MODEL", word)
    assert parsed()["strict_model"] is True


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "OFF"])
def test_false_words(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("JAXFOLD_OVERLAP", word)
    assert parsed()["overlap"] is False
    assert parsed("--overlap")["overlap"] is True


@pytest.mark.parametrize("word", ["t", "y", "2", "enabled", "nope"])
def test_other_words_are_an_error(monkeypatch: pytest.MonkeyPatch, run: Run, word: str) -> None:
    monkeypatch.setenv("JAXFOLD_STRICT_MODEL", word)
    outcome = run("serve", "m")
    assert outcome.code == 2 and "JAXFOLD_STRICT_MODEL" in outcome.err and repr(word) in outcome.err


@pytest.mark.parametrize("salt", ["x", "1.5", "0x10"])
def test_a_seed_salt_that_is_no_integer_is_a_start_up_error(
    monkeypatch: pytest.MonkeyPatch, run: Run, salt: str
) -> None:
    monkeypatch.setenv("JAXFOLD_SEED_SALT", salt)
    outcome = run("serve", "m")
    assert outcome.code == 2 and "JAXFOLD_SEED_SALT" in outcome.err


def test_several_aliases_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXFOLD_ALIAS", "gpt-4o,llama:7b")
    assert parsed()["alias"] == ("gpt-4o", "llama:7b")
    assert parsed("--alias", "one", "--alias", "two")["alias"] == ("one", "two")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "65536"],
        ["--port", "-1"],
        ["--port", "http"],
        ["--parallel", "0"],
        ["--context", "0"],
        ["--memory-fraction", "0"],
        ["--memory-fraction", "nan"],
        ["--memory-fraction", "1.5"],
        ["--temperature", "inf"],
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--min-p", "2"],
        ["--top-k", "-1"],
        ["--page-size", "100"],
        ["--weight-dtype", "int3"],
        ["--decode-share", "nan"],
        ["--max-queue", "0"],
        ["--max-body-mb", "0"],
        ["--drain-seconds", "-1"],
        ["--reply-limit", "ignore"],
        ["--name", "two words"],
        ["--alias", ""],
        ["--chat-template", "no/such/file"],
        ["--log-level", "loud"],
    ],
)
def test_a_value_out_of_range_is_refused_with_its_flag(run: Run, arguments: list[str]) -> None:
    outcome = run("serve", "m", *arguments)
    assert outcome.code == 2
    assert f"Invalid value for '{arguments[0]}'" in outcome.err and "Traceback" not in outcome.err


def test_unknown_variables_are_told_with_the_likely_name(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("JAXFOLD_MAX_TOKEN", "5")
    outcome = run("serve", "m", "--port", "nonsense")
    assert "JAXFOLD_MAX_TOKEN is not a setting of jaxfold; did you mean JAXFOLD_MAX_TOKENS?" in outcome.err


def test_known_and_foreign_variables_pass_in_silence() -> None:
    names = ["JAXFOLD_PORT", "JAXFOLD_HOME", "JAXFOLD_TEST_SMOLLM2", "PATH", "MY_JAXFOLD_X"]
    assert unknown_variables(names, ["JAXFOLD_PORT"]) == []
    assert unknown_variables(["JAXFOLD_ZZZ"], ["JAXFOLD_PORT"]) == [
        "the environment variable JAXFOLD_ZZZ is not a setting of jaxfold"
    ]


def test_switch_and_real_convert() -> None:
    assert Switch().convert(True, None, None) is True
    assert Real(min=0).convert("0.5", None, None) == 0.5
    with pytest.raises(click.BadParameter):
        Real().convert("nan", None, None)
