"""What must be the same on every host, named as its user knows it."""

import hashlib
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import jax

from jaxfold.checkpoints import Checkpoint
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.programs import cpu_flags
from jaxfold.runtime.programs import source_hash
from pallas_kernels.forms import kernels

OPTIONS: Final = (
    "context", "parallel", "weight_dtype", "compute_dtype", "kv_dtype", "tp", "page_size", "draft", "draft_tokens",
)  # fmt: skip
"""The options that programs and arrays depend on."""
WHOLE_BYTES: Final = 32 << 20
"""Files up to this size are compared whole."""
BLOCK_BYTES: Final = 4096
BLOCKS: Final = 4096
"""Blocks that are compared of a larger file, from its first to its last byte at equal distances."""
_READ: Final = frozenset({".safetensors", ".gguf", ".json", ".jinja", ".model"})
_PIECE: Final = re.compile(r"-\d{5}-of-(\d{5})$")


def facts_of(checkpoint: Checkpoint, options: EngineOptions, hosts: int) -> dict[str, str]:
    """Name -> value, of what is known before JAX starts. Where files lie or when they were written does not matter."""
    chosen = {"--" + name.replace("_", "-"): str(getattr(options, name)) for name in OPTIONS}
    return {
        "--num-hosts": str(hosts),
        "the checkpoint": contents(checkpoint.path)[:16],
        **chosen,
        "jaxfold's source": source_hash()[:16],
        "the version of jax": f"{jax.__version__} with jaxlib {version('jaxlib')}",
        "the processor": hashlib.sha256(cpu_flags().encode()).hexdigest()[:16],
        **{name: os.environ.get(name, "unset") for name in ("XLA_FLAGS", "JAX_PLATFORMS")},
    }


def device_facts() -> dict[str, str]:
    """What only JAX's devices tell, once they are there: their kind, and which form of each operation runs."""
    return {"the device": jax.local_devices()[0].device_kind, **dict(line.split(": ", 1) for line in kernels())}


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """What differs, as part of a sentence for the host whose facts are `theirs`; None if all is the same."""
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    if not names:
        return None
    differing = [f"{name} is {theirs.get(name)} there and {ours.get(name)} on host 0" for name in names]
    return "all hosts must have the same, but " + "; ".join(differing)


def contents(path: Path) -> str:
    """Hex digest of a checkpoint's sizes and contents: small files whole, of large ones blocks from all over."""
    digest = hashlib.sha256()
    for file in _files(path):
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            if size <= WHOLE_BYTES:
                digest.update(stream.read())
                continue
            for i in range(BLOCKS):
                stream.seek((size - BLOCK_BYTES) * i // (BLOCKS - 1))
                digest.update(stream.read(BLOCK_BYTES))
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        # All pieces of a GGUF file that was split.
        pieces = _PIECE.sub(r"-*-of-\1", path.stem)
        yield from sorted(path.parent.glob(pieces + path.suffix)) if pieces != path.stem else [path]
        return
    orbax = not any(path.glob("*.safetensors"))
    yield from sorted(file for file in path.rglob("*") if file.is_file() and (orbax or file.suffix in _READ))
