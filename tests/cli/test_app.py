"""Help, version, spelling, and what becomes of an exception."""

import io
import logging
import subprocess
import sys

import click
import pytest

from jaxfold.chat.template import ChatTemplateError
from jaxfold.chat.types import GenerationError
from jaxfold.chat.types import RequestError
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.cli import errors
from jaxfold.cli.app import COMMANDS
from jaxfold.models.config import ConfigError
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.options import OptionsError
from jaxfold.tokenizers.base import TokenizerError
from tests.cli.conftest import Run


def test_help_names_every_command_and_how_to_start(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    for name, line in COMMANDS.items():
        assert name in outcome.out and line in outcome.out
    assert "jaxfold serve smollm2:135m" in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(run: Run, command: str) -> None:
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert f"Usage: jaxfold {command}" in outcome.out
    assert "Examples:" in outcome.out and f"  jaxfold {command} " in outcome.out
    assert "--log-level" in outcome.out and "[default: info]" in outcome.out


def test_every_option_has_a_help_text(run: Run) -> None:
    from jaxfold.cli.app import cli

    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert not [p.name for p in command.params if not getattr(p, "help", None)]


def test_help_imports_neither_jax_nor_a_server() -> None:
    script = (
        "import sys; from jaxfold.cli import main; main(['--help']); main(['serve', '--help'])\n"
        "heavy = {'jax', 'numpy', 'quart', 'hypercorn', 'tokenizers', 'huggingface_hub', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version(run: Run) -> None:
    outcome = run("--version")
    assert outcome.code == 0 and outcome.out.startswith("jaxfold 0.")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["srve"], "Did you mean 'serve'?"),
        (["serve", "m", "--paralel", "2"], "'--parallel'"),
        (["serve", "m", "--prot", "2"], "'--port'"),
        (["run", "m", "hi", "--temprature", "0"], "'--temperature'"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(run: Run, arguments: list[str], hint: str) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2 and hint in outcome.err and not outcome.out


@pytest.mark.parametrize(
    "error",
    [
        errors.CliError("no such thing"),
        CheckpointError("model.gguf", "is truncated", "blk.0.attn_q.weight"),
        TokenizerError("no vocabulary"),
        ChatTemplateError("is no template"),
        RequestError("too long", "prompt"),
        GenerationError("the engine failed"),
        CapacityError("4096 tokens do not fit; the largest context is 2048"),
        OptionsError("parallel", "must be at least 1, not 0"),
        ConfigError("architecture 'x' is not supported"),
        FileNotFoundError(2, "No such file or directory", "model.gguf"),
        PermissionError(13, "Permission denied", "cache"),
    ],
)
def test_what_the_caller_can_mend_is_one_sentence_and_2(error: Exception) -> None:
    stream = io.StringIO()
    assert errors.report(error, stream) == 2
    text = stream.getvalue()
    assert text.startswith("jaxfold: ") and text.count("\n") == 1 and "Traceback" not in text


def test_a_fault_of_ours_is_one_line_a_hint_and_1() -> None:
    stream = io.StringIO()
    assert errors.report(ZeroDivisionError("division\nby zero"), stream) == 1
    first, second = stream.getvalue().splitlines()
    assert first == "jaxfold: unexpected ZeroDivisionError: division by zero"
    assert "--log-level debug" in second


def test_debug_shows_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with caplog.at_level(logging.DEBUG, logger="jaxfold"):
        try:
            raise ZeroDivisionError("by zero")
        except ZeroDivisionError as error:
            assert errors.report(error, stream) == 1
    assert "Traceback" in stream.getvalue() and "test_app.py" in stream.getvalue()
    assert "--log-level debug" not in stream.getvalue()


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (click.Abort(), 130), (click.exceptions.Exit(3), 3), (SystemExit(4), 4)],
)
def test_endings_that_are_no_errors(error: BaseException, code: int) -> None:
    assert errors.report(error, io.StringIO()) == code


def test_an_error_without_words_is_named() -> None:
    assert errors.sentence(ValueError()) == "ValueError"


def test_a_closed_pipe_is_no_error() -> None:
    script = "import sys; from jaxfold.cli import main; sys.exit(main(['--help']))"
    command = f'{sys.executable} -c "{script}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() in ("0", "1")
