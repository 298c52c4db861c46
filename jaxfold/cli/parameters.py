"""Option and argument kinds shared by the commands: grouped help, environment names, strict values."""

import math
import os
from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from typing import Final

import click

from jaxfold.cli.environment import variable_of

CONTEXT_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType(
    {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}
)

TRUE_WORDS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "no", "off"})


class Option(click.Option):
    """An option with a heading in the help text and a JAXFOLD_ variable; `also` are variables of lower precedence."""

    def __init__(self, *args: Any, group: str = "Other", also: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.envvar = [variable_of(self.name or ""), *also]

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The flag, and the variable where the value came from one."""
        hint = super().get_error_hint(ctx)
        if ctx is None or ctx.get_parameter_source(self.name or "") is not click.core.ParameterSource.ENVIRONMENT:
            return hint
        return f"{hint} (environment variable {next(name for name in self.envvar or () if os.environ.get(name))})"


class Command(click.Command):
    """A command whose help text lists the options under their groups' headings, in order of first appearance."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # click writes the section of the arguments itself.
            if record is None or isinstance(parameter, click.Argument):
                continue
            heading = parameter.group if isinstance(parameter, Option) else "Other"
            sections.setdefault(heading, []).append(record)
        # --help is made last by click and belongs at the end.
        sections["Other"] = sections.pop("Other")
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class Switch(click.types.BoolParamType):
    """A boolean, in the environment 1/true/yes/on or 0/false/no/off and nothing else."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            self.fail(f"{value!r} is none of 1, true, yes, on, 0, false, no, off.", param, ctx)
        return word in TRUE_WORDS


class Real(click.FloatRange):
    """A finite float in a range (nan would pass every comparison)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class ModelId(click.ParamType[str]):
    """The id of a served model: printable, no blanks; several in one variable are separated by commas."""

    name = "id"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if not text or not text.isprintable() or any(letter.isspace() for letter in text):
            self.fail(f"{value!r} is no model id: use printable characters without blanks.", param, ctx)
        return text


type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, group: str, **kwargs: Any) -> Decorator:
    """`click.option` with a help heading, a short name for numbers and its JAXFOLD_ variable."""
    kind = kwargs.get("type")
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        whole = isinstance(kind, click.IntRange)
        kwargs.setdefault("metavar", "N" if whole else "X")
        # The word in "'abc' is not a valid ...", where click would say "integer range".
        kind.name = "whole number" if whole else "number"
    if kwargs.get("is_flag") or "/" in names[0]:
        kwargs.setdefault("type", Switch())
    return click.option(*names, cls=Option, group=group, **kwargs)


def options(*decorators: Decorator) -> Decorator:
    """One decorator from several, the first one listed first in the help text."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument: Final = click.argument(
    "model", metavar="MODEL", help="A name (smollm2:135m), a path, or a Hugging Face id (org/name)."
)

optional_model_argument: Final = click.argument(
    "model",
    metavar="[MODEL]",
    required=False,
    help="A name (smollm2:135m), a path, or a Hugging Face id (org/name); none with --embeddings alone.",
)

log_level_option: Final = option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    group="Logging",
    help="How much to say on stderr; debug adds tracebacks.",
)
