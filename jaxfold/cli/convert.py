"""`jaxfold convert`: write a checkpoint in the form that loads fastest."""

from pathlib import Path
from typing import get_args

import click

from jaxfold.cli.errors import CliError
from jaxfold.cli.models import locate
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.parameters import option
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging
from jaxfold.runtime.options import WeightDtype


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold convert smollm2:135m models/smollm2
  jaxfold convert models/qwen3 models/qwen3-fast --shards 4 --dtype bf16
  jaxfold serve models/smollm2""",
)
@click.argument("source", metavar="SRC", help="The checkpoint: a name, a path, or a Hugging Face id.")
@click.argument("destination", metavar="DST", type=click.Path(path_type=Path), help="The folder to make.")
@option(
    "--shards",
    type=click.IntRange(min=1, max=1024),
    group="Output",
    show_default="one whole",
    help="Split the weights so that this many devices each read their part.",
)
@option(
    "--dtype",
    type=click.Choice(get_args(WeightDtype)),
    default="auto",
    group="Output",
    help="How weights are written; auto keeps what the engine would use here.",
)
@log_level_option
def convert(source: str, destination: Path, shards: int | None, dtype: WeightDtype, log_level: str) -> None:
    """Write the checkpoint SRC into the new folder DST as an Orbax checkpoint.

    It gives the same logits, bit for bit, and is ready to load where no cache holds the weights yet.
    """
    configure_logging(log_level)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CliError(f"{destination} is already there and not an empty folder; name a new one")
    with Steps() as steps:
        path = locate(source, steps)
        steps("loading the converter")
        from jaxfold.runtime.convert import convert as write

        write(path, destination, shards=shards, dtype=dtype, progress=steps)
    click.echo(destination)
