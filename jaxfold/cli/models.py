"""From MODEL on the command line to a path and the id it is served under."""

from collections.abc import Callable
from pathlib import Path

from jaxfold.cli.errors import CliError


def locate(model: str, progress: Callable[[str], None]) -> Path:
    """Where the checkpoint lies; a catalogue name or hub id is fetched first, with `progress` told of each step.

    Raises:
        CliError: MODEL is empty.
        CheckpointError: nothing of that name exists or can be had.
    """
    from jaxfold.checkpoints import catalogue

    if not model.strip():
        raise CliError("MODEL is empty: give a name (smollm2:135m), a path, or a Hugging Face id (org/name)")
    return catalogue.resolve(model, progress=progress)


def served_name(model: str, name: str | None) -> str:
    """The id of the served model: --name, else the file's or folder's name, else MODEL as written."""
    if name:
        return name
    path = Path(model).expanduser()
    if not path.exists():
        return model
    resolved = path.resolve()
    return resolved.stem if resolved.suffix == ".gguf" else resolved.name
