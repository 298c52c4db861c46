"""The root command and what happens to an error: one sentence and an honest exit code."""

import importlib
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import click

from jaxfold.cli.environment import warn_about_unknown_variables
from jaxfold.cli.errors import report
from jaxfold.cli.parameters import CONTEXT_SETTINGS

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "Serve a model over OpenAI's, Anthropic's and Ollama's APIs.",
        "run": "Answer one prompt in the terminal, without a server.",
        "pull": "Fetch a model and print where it lies.",
        "convert": "Write a checkpoint in the form that loads fastest.",
        "doctor": "Show what this machine can run, and how exactly.",
        "bench": "Measure the speed of a model on this machine.",
    }
)
"""Subcommand -> its line in `jaxfold --help`. The module of the same name holds the command under the same name."""


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, so that `jaxfold --help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"jaxfold.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click knows only commands that are already loaded, so its suggestion is made again from ours.
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    name="jaxfold",
    cls=LazyGroup,
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Start here:
  jaxfold serve smollm2:135m              chat at http://127.0.0.1:8080/v1
  jaxfold run smollm2:135m "What is 2+2?"
  jaxfold COMMAND --help                  the options of one command

\b
MODEL is a name (smollm2:135m), a path (a .gguf file or a folder) or a
Hugging Face id (org/name). Every option can also be set in the environment:
--max-tokens is JAXFOLD_MAX_TOKENS.""",
)
@click.version_option(None, "-V", "--version", package_name="jaxfold", message="jaxfold %(version)s")
def cli() -> None:
    """Run open chat models as compiled JAX programs, with exact replies."""
    warn_about_unknown_variables()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done; 1 a fault of jaxfold itself; 2 something the caller can mend (flag, file, memory, port); 70 another host was
    lost; 130 interrupted.
    """
    try:
        code = cli.main(args=None if arguments is None else list(arguments), prog_name="jaxfold", standalone_mode=False)
    except BaseException as error:
        return report(error, sys.stderr)
    # click returns what the command returned, or the code of `ctx.exit`; both are an exit code or None here.
    return code if isinstance(code, int) else 0
