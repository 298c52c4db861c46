"""`jaxfold pull`: fetch a model and print where it lies."""

import click

from jaxfold.cli.models import locate
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.parameters import model_argument
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold pull smollm2:135m
  jaxfold pull Qwen/Qwen3-0.6B""",
)
@model_argument
@log_level_option
def pull(model: str, log_level: str) -> None:
    """Fetch MODEL, unless it is already here, and print its path on stdout."""
    configure_logging(log_level)
    with Steps() as steps:
        path = locate(model, steps)
    click.echo(path)
