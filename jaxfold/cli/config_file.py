"""--config: options from a JSON file, below the command line and the environment."""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Final

import click

from jaxfold.cli.parameters import option

VARIABLES: Final = "variables"
# A string, which stays, or a comment, which goes.
_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")


def read_config(path: Path, command: click.Command) -> dict[str, Any]:
    """The options in the file at `path`: parameter of `command` -> text, or texts for one that may be repeated.

    The file is one JSON object, in which // and /* */ are comments. A key is an option's name without dashes in front
    ("max-tokens" or "max_tokens") or "model". "variables" are texts that ${name} stands for in the others.

    Raises:
        click.BadParameter: the file, or something in it, cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(_COMMENT.sub(lambda match: match.group(1) or " ", text))
    except OSError as error:
        raise _bad(path, f"cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"is not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise _bad(path, "must hold one JSON object")
    variables = raw.pop(VARIABLES, {})
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise _bad(path, f'"{VARIABLES}" must be an object of texts')
    known = {parameter.name: parameter for parameter in command.params if parameter.name not in ("config", None)}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = key.replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, [str(one) for one in known], n=1)
            hint = f'; did you mean "{close[0].replace("_", "-")}"?' if close else ""
            raise _bad(path, f'has no option called "{key}"{hint}')
        if value is not None:
            found[name] = _texts(value, bool(getattr(known[name], "multiple", False)), variables, path, key)
    return found


def _texts(value: Any, multiple: bool, variables: Mapping[str, str], path: Path, key: str) -> Any:
    """The value as the command line would have it, so that it is checked as strictly."""
    if multiple:
        values = value if isinstance(value, list) else [value]
        return [_text(one, variables, path, key) for one in values]
    return _text(value, variables, path, key)


def _text(value: Any, variables: Mapping[str, str], path: Path, key: str) -> str:
    if isinstance(value, list | dict):
        raise _bad(path, f'"{key}" must be a text, a number, true or false')
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match.group(1), variables, path, key), value)
    return json.dumps(value)


def _variable(name: str, variables: Mapping[str, str], path: Path, key: str) -> str:
    if name not in variables:
        raise _bad(path, f'"{key}" names the variable ${{{name}}}, which "{VARIABLES}" does not have')
    return variables[name]


def _bad(path: Path, reason: str) -> click.BadParameter:
    return click.BadParameter(f"{path} {reason}", param_hint="'--config'")


def _use(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx.command)}
    return path


config_option: Final = option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    group="Other",
    is_eager=True,
    expose_value=False,
    callback=_use,
    help='A JSON file of options, as {"model": "...", "max-tokens": 500}. The command line and the environment win.',
)
