"""Exceptions to exit codes: what the caller can mend is one sentence and 2, a fault of ours is one line and 1."""

import logging
import sys
import traceback
from typing import TextIO

import click

EXIT_FAULT = 1
EXIT_CALLER = 2
EXIT_HOST_LOST = 70
EXIT_INTERRUPTED = 130


class CliError(Exception):
    """Something the caller can mend. The message is one sentence."""


def report(error: BaseException, stream: TextIO) -> int:
    """Tell `stream` about the exception that ended the command; the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show(stream)
        return error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        print("jaxfold: interrupted", file=stream)
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit):  # click's ending where the reader of a pipe went away
        return error.code if isinstance(error.code, int) else EXIT_FAULT
    from jaxfold.runtime.api import HostLostError

    debug = logging.getLogger("jaxfold").isEnabledFor(logging.DEBUG)
    if debug:
        traceback.print_exception(error, file=stream)
    if is_for_the_caller(error):
        print(f"jaxfold: {sentence(error)}", file=stream)
        return EXIT_HOST_LOST if isinstance(error, HostLostError) else EXIT_CALLER
    print(f"jaxfold: unexpected {type(error).__name__}: {sentence(error)}", file=stream)
    if not debug:
        print("jaxfold: run it again with --log-level debug for the traceback", file=stream)
    return EXIT_FAULT


def is_for_the_caller(error: BaseException) -> bool:
    """True for the refusals whose text is written for the person at the terminal."""
    # Imported here, where the error is already there: none of these modules is needed to parse a command line.
    from jaxfold.chat.template import ChatTemplateError
    from jaxfold.chat.types import GenerationError
    from jaxfold.chat.types import RequestError
    from jaxfold.checkpoints.base import CheckpointError
    from jaxfold.runtime.api import EngineError
    from jaxfold.runtime.options import OptionsError
    from jaxfold.tokenizers.base import TokenizerError

    ours = (CliError, OptionsError, EngineError, CheckpointError, TokenizerError, ChatTemplateError, RequestError)
    return isinstance(error, (*ours, GenerationError, OSError)) or _is_config_error(error)


def _is_config_error(error: BaseException) -> bool:
    # The models bring JAX, so they are looked at only if they were loaded already.
    module = sys.modules.get("jaxfold.models.config")
    return module is not None and isinstance(error, module.ConfigError)


def sentence(error: BaseException) -> str:
    """The message on one line; an OSError as "path: reason"; the type's name if there is no message."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
