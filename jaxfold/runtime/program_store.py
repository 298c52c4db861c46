"""Compiled programs on disk: serialised executables, written whole and read back only where nobody else can write."""

import contextlib
import hashlib
import logging
import os
import pickle
import threading
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

LOG = logging.getLogger(__name__)


def obtain(path: Path | None, lower: Callable[[], Any], devices: int = 1) -> tuple[Any, bool]:
    """The executable kept at `path`, or the compiled result of `lower()`, then kept; and whether it was compiled.

    It runs on the first `devices` devices.
    """
    if path is not None and path.exists():
        try:
            payload, in_tree, out_tree = pickle.loads(_intact(path))
            program = serialize_executable.deserialize_and_load(
                payload, in_tree, out_tree, execution_devices=jax.devices()[:devices]
            )
            return program, False
        except Exception as error:
            LOG.warning("cached program %s cannot be loaded (%s); compiling it again", path.name, error)
            # A cache that can only be read keeps its damaged file.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    compiled = lower().compile()
    if path is not None:
        _store(path, compiled)
    return compiled, True


@contextlib.contextmanager
def without_jax_cache() -> Iterator[None]:
    """Compile past JAX's own cache (JAX_COMPILATION_CACHE_DIR): on the CPU what it gives back may not run.

    An executable that was itself deserialised loses functions when it is serialised again.
    """
    before = bool(jax.config.jax_enable_compilation_cache)
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def own_dir(path: Path) -> Path | None:
    """`path`, made with mode 0700 where it is missing; None where it cannot be had or others could write into it."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
    except OSError as error:
        LOG.warning("compiled programs are not kept: %s", error)
        return None
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        LOG.warning("compiled programs are not kept: other users can write to %s", path)
        return None
    return path


def _intact(path: Path) -> bytes:
    """What `_store` wrote. Machine code with a changed bit would run, so the digest before it is compared."""
    content = path.read_bytes()
    size = hashlib.sha256().digest_size
    if hashlib.sha256(content[size:]).digest() != content[:size]:
        raise ValueError("the file is damaged")
    return content[size:]


def _store(path: Path, compiled: Any) -> None:
    """Write one serialised executable, atomically; a full disk costs the next start time, not this one."""
    part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        content = pickle.dumps(serialize_executable.serialize(compiled))
        part.write_bytes(hashlib.sha256(content).digest() + content)
        part.replace(path)
    except OSError as error:
        LOG.warning("the compiled program could not be cached: %s", error)
        # What was written of it would keep a full disk full.
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
