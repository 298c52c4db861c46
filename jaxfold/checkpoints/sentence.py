"""How an encoder's checkpoint says that token vectors become one: sentence-transformers' files, or GGUF's key."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from typing import Literal

from jaxfold.checkpoints.base import Checkpoint
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.files import read_json

MODULES = "modules.json"
POOLING_CONFIG = "1_Pooling/config.json"
SENTENCE_FILES = (MODULES, POOLING_CONFIG)
"""What stands beside the files of a plain model."""
GGUF_POOLING = "gguf_pooling_type"
"""Where the settings of a GGUF file hold its pooling."""

Pooling = Literal["mean", "cls", "last"]
_GGUF_TYPES: Mapping[int, Pooling] = MappingProxyType({1: "mean", 2: "cls", 3: "last"})
_MODES: Mapping[str, Pooling] = MappingProxyType({"mean": "mean", "cls": "cls", "lasttoken": "last"})
_FLAGS: Mapping[str, Pooling] = MappingProxyType(
    {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
)
_MAX_BYTES = 1 << 20


def pooling_of(checkpoint: Checkpoint) -> Pooling:
    """The one way of pooling that the checkpoint asks for.

    Raises:
        CheckpointError: it names none, several, one that is not built, or further layers after it.
    """
    if checkpoint.format == "gguf":
        kind = checkpoint.config.get(GGUF_POOLING)
        if not isinstance(kind, int) or kind not in _GGUF_TYPES:
            reason = f"has the pooling type {kind!r}; an encoder needs 1 (mean), 2 (cls) or 3 (last)"
            raise CheckpointError(checkpoint.path, reason)
        return _GGUF_TYPES[kind]
    directory = Path(checkpoint.path)
    if not (directory / MODULES).is_file():
        raise CheckpointError(directory, f"has no {MODULES}, which says how token vectors become one")
    return _pooling_config(_pooling_folder(directory / MODULES) / "config.json")


def _pooling_folder(path: Path) -> Path:
    """The folder of the pooling module; the others are the model itself and the normalisation, which is always done."""
    folders = []
    for module in _modules(path):
        kind, folder = str(module.get("type", "")).rpartition(".")[2], module.get("path", "")
        if kind == "Pooling":
            if not isinstance(folder, str) or not folder or folder.startswith(".") or Path(folder).name != folder:
                raise CheckpointError(path, f"names a pooling folder that is no plain name ({folder!r:.80})")
            folders.append(path.parent / folder)
        elif kind not in ("Transformer", "Normalize"):
            raise CheckpointError(path, f"asks for a {kind or 'nameless'} module, which is not supported")
    if len(folders) != 1:
        raise CheckpointError(path, f"names {len(folders)} pooling modules, not one")
    return folders[0]


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        raw = path.read_bytes()
        found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CheckpointError(path, "should hold a JSON list of modules")
    return found


def _pooling_config(path: Path) -> Pooling:
    """One folder's settings, in the form of one name (newer files) or of one flag a mode (older ones)."""
    config = read_json(path)
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        chosen = {mode}
    else:
        chosen = {name for name, value in config.items() if name.startswith("pooling_mode_") and value is True}
    known = {**_MODES, **_FLAGS}
    if len(chosen) != 1 or not chosen <= set(known):
        shown = ", ".join(sorted(chosen)) or "no mode"
        raise CheckpointError(path, f"asks for {shown}; supported is one of mean, cls and last token")
    return known[chosen.pop()]
