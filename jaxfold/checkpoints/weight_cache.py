"""A cache of ready weights on disk: one safetensors file a key, mapped on load, the least recently used dropped first.

A file's values start on a 64-byte boundary, so that JAX can use the mapped bytes on the CPU without copying them.
Checksums are compared on every load: a cache must never change a reply.
"""

import contextlib
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.safetensors_header import STORED_TYPES
from jaxfold.checkpoints.safetensors_header import read_header

_KEY = re.compile(r"^[0-9a-f]{8,128}$")
_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_ALIGNMENT = 64
_STALE_S = 3600.0


def load(cache_dir: Path, key: str) -> dict[str, np.ndarray] | None:
    """The arrays stored under a key, as read-only views of the mapped file; None where there are none.

    A damaged file is deleted and counts as missing, as does a directory that other users could have written to.

    Args:
        cache_dir: the directory given to `store`.
        key: lower-case hex digest, 8 to 128 digits.
    """
    path = _path(cache_dir, key)
    if not _is_private(cache_dir) or not path.is_file():
        return None
    try:
        file = read_header(path)
        arrays = {name: file.read(name) for name in file.tensors}
        if file.metadata.get("key") != key or json.loads(file.metadata.get("crc32", "")) != _checksums(arrays):
            raise CheckpointError(path, "does not hold what was stored")
        os.utime(path)
    except (CheckpointError, ValueError):
        # A cache that can only be read keeps its damaged file.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    except OSError:  # another process dropped it meanwhile
        return None
    return arrays


def store(cache_dir: Path, key: str, arrays: Mapping[str, np.ndarray], max_bytes: int) -> bool:
    """Keep arrays under a key, after dropping old entries until all files together fit `max_bytes`.

    Args:
        cache_dir: made with mode 0700 where it is missing.
        key: lower-case hex digest, 8 to 128 digits.
        arrays: contiguous arrays of types that safetensors knows (bfloat16 and int8 included).
        max_bytes: bound on the directory's cache files.

    Returns:
        False where nothing was stored: too large, disk full, or a directory that is not this user's own.
    """
    path = _path(cache_dir, key)
    header = _header(key, arrays)
    size = len(header) + sum(array.nbytes for array in arrays.values())
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(cache_dir) or size > max_bytes:
            return False
        _make_room(cache_dir, path, max_bytes - size)
        handle, partial = tempfile.mkstemp(prefix=f".{key[:16]}-", suffix=_PARTIAL, dir=cache_dir)
        try:
            with open(handle, "wb") as file:
                file.write(header)
                for name in _order(arrays):
                    file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _path(cache_dir: Path, key: str) -> Path:
    if not _KEY.match(key):
        raise ValueError("a cache key is a lower-case hex digest")
    return cache_dir / f"{key}{_SUFFIX}"


def _is_private(cache_dir: Path) -> bool:
    try:
        stat = cache_dir.stat()
    except OSError:
        return False
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o022


def _order(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Names in file order: arrays of whole 64-byte lines first, so that these stay aligned."""
    return sorted(arrays, key=lambda name: arrays[name].nbytes % _ALIGNMENT != 0)


def _header(key: str, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Length and JSON of a safetensors header, padded with spaces to the alignment."""
    types = {dtype: name for name, dtype in STORED_TYPES.items()}
    metadata = {"key": key, "crc32": json.dumps(_checksums(arrays))}
    entries: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name in _order(arrays):
        array = arrays[name]
        offsets = [at, at + array.nbytes]
        entries[name] = {"dtype": types[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _checksums(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """CRC-32 of name, type, shape and values, by name."""

    def checksum(name: str) -> int:
        array = np.ascontiguousarray(arrays[name])
        head = zlib.crc32(f"{name}\0{array.dtype}\0{array.shape}".encode())
        return zlib.crc32(array.reshape(-1).view(np.uint8).data, head)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(arrays, pool.map(checksum, arrays), strict=True))


def _make_room(cache_dir: Path, kept: Path, max_bytes: int) -> None:
    """Drop the least recently used files other than `kept` until they fit, and what crashed writers left."""
    for partial in cache_dir.glob(f".*{_PARTIAL}"):
        if time.time() - partial.stat().st_mtime > _STALE_S:
            partial.unlink(missing_ok=True)
    files = [path for path in cache_dir.glob(f"*{_SUFFIX}") if path != kept]
    stats = sorted(((path.stat(), path) for path in files), key=lambda item: item[0].st_mtime_ns)
    total = sum(stat.st_size for stat, _ in stats)
    for stat, path in stats:
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size
