"""Checkpoints on disk: one door for GGUF files, Hugging Face directories and converted (Orbax) directories."""

from pathlib import Path

from jaxfold.checkpoints.base import Checkpoint
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import GgufVocabulary
from jaxfold.checkpoints.base import TensorInfo
from jaxfold.checkpoints.base import TokenizerFiles

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "GgufVocabulary",
    "TensorInfo",
    "TokenizerFiles",
    "open_checkpoint",
]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint by what is there: headers and settings are read and checked, tensors are not.

    Args:
        path: a .gguf file (any part of a split one), or a directory that holds one GGUF model, a Hugging Face
            model (config.json and safetensors), or a converted one (jaxfold.json).

    Raises:
        CheckpointError: nothing usable is there; the message names the file (and tensor).
    """
    path = Path(path).expanduser()
    try:
        if path.is_dir():
            return _open_directory(path)
        if path.is_file():
            return _open_file(path)
    except OSError as error:
        raise CheckpointError(error.filename or path, f"cannot be read ({error.strerror or error})") from None
    raise CheckpointError(path, "there is no such file or directory")


def _open_file(path: Path) -> Checkpoint:
    # The readers are imported when needed: each brings a library that the others do without.
    # (mypy: the contract declares settable attributes; tokenizer_files is computed when it is asked for.)
    if path.suffix == ".safetensors":
        raise CheckpointError(path, "is only the weights; give the directory that holds it and config.json")
    from jaxfold.checkpoints.gguf_reader import GgufCheckpoint

    return GgufCheckpoint(path)  # type: ignore[return-value]


def _open_directory(path: Path) -> Checkpoint:
    if (path / "jaxfold.json").is_file():
        from jaxfold.checkpoints.orbax_store import OrbaxCheckpoint

        return OrbaxCheckpoint(path)  # type: ignore[return-value]
    files = sorted(path.glob("*.gguf"))
    if any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")) or not files:
        if not (path / "config.json").is_file() and not any(path.glob("*.safetensors")):
            raise CheckpointError(path, "holds no model (looked for *.gguf, config.json and jaxfold.json)")
        from jaxfold.checkpoints.safetensors_reader import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)  # type: ignore[return-value]
    return _open_file(_only_model(path, files))


def _only_model(directory: Path, files: list[Path]) -> Path:
    """The one GGUF model of a directory; image projectors do not count and a split model counts once."""
    from jaxfold.checkpoints.gguf_reader import part_paths

    models = [file for file in files if not file.name.startswith("mmproj")]
    parts = part_paths(models[0]) if models else []
    if not models or any(model not in parts for model in models):
        names = ", ".join(file.name for file in files[:8])
        raise CheckpointError(directory, f"should hold one GGUF model; give the file's path (found {names})")
    return parts[0]
