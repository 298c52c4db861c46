"""Small file helpers that every checkpoint reader shares: bounded JSON, memory maps, fingerprints."""

import hashlib
import json
import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxfold.checkpoints.base import CheckpointError

MAX_JSON_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: the file is missing, larger than 256 MiB, not JSON, holds NaN, or is no object.
    """
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(path, f"is too large for a settings file ({size} bytes)")
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from None
    return parse_json(path, raw)


def parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    """As `read_json`, for bytes that were already read from `path`."""
    try:
        value = json.loads(raw, parse_constant=_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise CheckpointError(path, "is not usable JSON (nested too deeply)") from None
    except ValueError as error:
        raise CheckpointError(path, f"is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(path, "should hold a JSON object")
    return value


def _constant(name: str) -> float:
    # Some published configs use Infinity as "no limit"; NaN is never a setting.
    if name == "NaN":
        raise ValueError("NaN is not a value")
    return -math.inf if name.startswith("-") else math.inf


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def map_file(path: Path) -> memoryview:
    """The whole file as read-only bytes, mapped rather than read. Empty files give an empty view.

    Raises:
        CheckpointError: the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def fingerprint(parts: Iterable[tuple[Path, bytes | memoryview]]) -> str:
    """Hex digest over each file's name, size, modification time and the bytes given for it (its header)."""
    digest = hashlib.sha256()
    for path, header in parts:
        try:
            stat = path.stat()
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from None
        digest.update(
            f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{len(header)}\0".encode(errors="surrogateescape")
        )
        digest.update(header)
    return digest.hexdigest()
