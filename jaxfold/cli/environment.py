"""The environment overlay: JAXFOLD_<OPTION> for every option, and HOST and PORT below them. Nothing else is read."""

import difflib
import os
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final

import click

PREFIX: Final = "JAXFOLD_"

# Read elsewhere than by an option: the folder of models and caches, whether tests may fetch the real model, and what
# several hosts know, which no command line should show.
OTHER_VARIABLES: Final = frozenset({"JAXFOLD_HOME", "JAXFOLD_OFFLINE", "JAXFOLD_HOSTS_SECRET"})
TEST_PREFIX: Final = "JAXFOLD_TEST_"


def variable_of(parameter: str) -> str:
    """The variable of an option: `max_tokens` -> JAXFOLD_MAX_TOKENS."""
    return PREFIX + parameter.upper()


def known_variables(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Every variable that some option of `command` or of its subcommands reads."""
    for parameter in command.params:
        names = parameter.envvar or ()
        yield from (names,) if isinstance(names, str) else names
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child is not None:
                yield from known_variables(child, ctx)


def unknown_variables(environment: Iterable[str], known: Iterable[str]) -> list[str]:
    """One sentence for each JAXFOLD_ variable that nothing reads, with the likely spelling."""
    names = set(known) | OTHER_VARIABLES
    sentences = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name.startswith(TEST_PREFIX) or name in names:
            continue
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        hint = f"; did you mean {close[0]}?" if close else ""
        sentences.append(f"the environment variable {name} is not a setting of jaxfold{hint}")
    return sentences


def warn_about_unknown_variables() -> None:
    """Print those sentences on stderr. Costs nothing where no JAXFOLD_ variable is set."""
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    ctx = click.get_current_context()
    for text in unknown_variables(os.environ, known_variables(ctx.command, ctx)):
        print(f"jaxfold: warning: {text}", file=sys.stderr)
