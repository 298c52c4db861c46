"""Converted checkpoints: a model's own weight pytree in Orbax, with the settings and the tokenizer beside it.

A directory holds `jaxfold.json` (the marker: settings, shapes, where it came from), the tokenizer's own files or the
GGUF vocabulary as JSON, and `weights/`, which Orbax writes. Leaves are stored by their path in the pytree, so that
nothing of the pytree's classes is pickled. Checksums of Orbax's files are compared before they are restored: Orbax
itself lets changed values pass. Only this module of the package imports JAX, when weights are moved.
"""

import dataclasses
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxfold.checkpoints import side_files
from jaxfold.checkpoints.base import Checkpoint
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import GgufVocabulary
from jaxfold.checkpoints.base import TensorInfo
from jaxfold.checkpoints.base import TokenizerFiles
from jaxfold.checkpoints.files import fingerprint
from jaxfold.checkpoints.files import map_file
from jaxfold.checkpoints.files import read_json

MARKER = "jaxfold.json"
WEIGHTS = "weights"
VOCABULARY = "gguf_vocabulary.json"
FORMAT_VERSION = 1


class OrbaxCheckpoint:
    """A converted checkpoint opened for its settings: see `jaxfold.checkpoints.base.Checkpoint`.

    `tensors` are the leaves of the stored pytree by path, not Hugging Face names, and `read` always refuses: the
    weights come whole, through `restore_weights`. `metadata` is what `save_weights` was given.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = "orbax"
        marker = _Marker(path)
        self.model_type: str = marker.get("model_type", str)
        self.config: Mapping[str, Any] = marker.get("config", dict)
        self.generation_config: Mapping[str, Any] = marker.get("generation_config", dict)
        self.metadata: Mapping[str, Any] = marker.get("metadata", dict)
        self.chat_template: str | None = marker.get("chat_template", str | None)
        self.eos_token_ids: tuple[int, ...] = tuple(marker.ints("eos_token_ids"))
        self.tensors: Mapping[str, TensorInfo] = marker.tensors()
        self._tokenizer_config: dict[str, Any] = marker.get("tokenizer_config", dict)
        if not (path / WEIGHTS).is_dir():
            raise CheckpointError(path / WEIGHTS, "is missing")
        files = sorted(file for file in path.rglob("*") if file.is_file())
        self.fingerprint = fingerprint((file, b"") for file in files)

    @cached_property
    def tokenizer_files(self) -> TokenizerFiles:
        """As the source had it. Raises CheckpointError where the source had none."""
        path = self.path / VOCABULARY
        if path.is_file():
            return TokenizerFiles(None, None, _vocabulary(path), self._tokenizer_config)
        return side_files.tokenizer_files(self.path, self._tokenizer_config)

    def read(self, name: str) -> np.ndarray:
        """Always refuses: a converted checkpoint holds the engine's layout."""
        raise CheckpointError(self.path, "holds converted weights, which are restored whole, not by tensor", name)


class _Marker:
    """jaxfold.json, with each entry's type checked."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / MARKER
        self.content = read_json(self.path)
        version = self.content.get("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(self.path, f"has format version {version!r:.20}; this program reads {FORMAT_VERSION}")

    def get(self, key: str, kind: Any) -> Any:
        value = self.content.get(key)
        if not isinstance(value, kind):
            raise CheckpointError(self.path, f"is corrupt (its entry {key!r} is missing or of another type)")
        return value

    def ints(self, key: str) -> list[int]:
        value = self.get(key, list)
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise CheckpointError(self.path, f"is corrupt (its entry {key!r} should hold whole numbers)")
        return list(value)

    def checksums(self) -> dict[str, int]:
        value = self.get("checksums", dict)
        if not all(isinstance(item, int) for item in value.values()):
            raise CheckpointError(self.path, "is corrupt (its checksums should be whole numbers)")
        return dict(value)

    def tensors(self) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for name, entry in self.get("tensors", dict).items():
            try:
                found[name] = TensorInfo(tuple(map(int, entry["shape"])), str(entry["dtype"]))
            except (TypeError, KeyError, ValueError):
                raise CheckpointError(self.path, "is corrupt (its shape or type cannot be read)", name) from None
        return found


def save_weights(
    tree: Any,
    directory: Path,
    *,
    sidecar_from: Checkpoint,
    metadata: Mapping[str, Any],
    shards: int | None = None,
) -> None:
    """Write a pytree of arrays and what `open_checkpoint` needs into a new directory, whole or not at all.

    Args:
        tree: pytree whose leaves are jax or numpy arrays, of any shapes and dtypes.
        directory: must not exist yet.
        sidecar_from: the checkpoint whose settings, tokenizer and template are kept.
        metadata: JSON values about the layout (dtypes, versions), handed back as `OrbaxCheckpoint.metadata`.
        shards: store the values in about this many files; None leaves it to Orbax (one file up to 2 GB).

    Raises:
        CheckpointError: the directory exists, or it cannot be written.
        ValueError: `shards` is below 1.
    """
    if shards is not None and shards < 1:
        raise ValueError("shards must be at least 1")
    if directory.exists():
        raise CheckpointError(directory, "already exists; give a new directory or remove it first")
    leaves = _named_leaves(tree)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = directory.with_name(f".{directory.name}.partial-{uuid.uuid4().hex[:8]}")
        partial.mkdir()
        try:
            marker = _write_side_files(partial, sidecar_from, leaves, metadata)
            _write_leaves((partial / WEIGHTS).absolute(), leaves, shards)
            _write_json(partial / MARKER, marker | {"checksums": _checksums(partial / WEIGHTS)})
            os.rename(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(directory, f"cannot be written ({error.strerror or error})") from None


def restore_weights(directory: Path, abstract_tree: Any) -> Any:
    """The stored pytree, each leaf placed as its `jax.ShapeDtypeStruct` says.

    Args:
        directory: what `save_weights` wrote.
        abstract_tree: the same pytree with `jax.ShapeDtypeStruct` leaves; `sharding` may be None (default device).

    Raises:
        CheckpointError: a leaf is missing, left over, of another shape or dtype, or its data cannot be read.
    """
    import jax

    wanted = _named_leaves(abstract_tree)
    marker = _Marker(directory)
    _check_leaves(directory, wanted, marker.tensors())
    _check_files(directory / WEIGHTS, marker.checksums())
    structure = jax.tree.structure(abstract_tree)
    try:
        arrays = _read_leaves((directory / WEIGHTS).absolute(), wanted)
    except Exception as error:  # Orbax and TensorStore raise many types for damaged files
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(directory / WEIGHTS, f"cannot be restored ({first})") from error
    return jax.tree.unflatten(structure, [arrays[name] for name in wanted])


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path, e.g. "layers.0.wq", in the pytree's order."""
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) != len(leaves) or not named:
        raise ValueError("the pytree has no leaves, or two whose paths read the same")
    return named


def _check_leaves(directory: Path, wanted: Mapping[str, Any], stored: Mapping[str, TensorInfo]) -> None:
    for name, leaf in wanted.items():
        info = stored.get(name)
        if info is None:
            raise CheckpointError(directory, "is not in the converted checkpoint; convert it again", name)
        asked = TensorInfo(tuple(leaf.shape), str(np.dtype(leaf.dtype)))
        if info != asked:
            have, want = (f"{item.stored} {list(item.shape)}" for item in (info, asked))
            raise CheckpointError(directory, f"is stored as {have} but needed as {want}; convert it again", name)
    for name in stored:
        if name not in wanted:
            raise CheckpointError(directory, "is stored but not part of the model; convert it again", name)


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of each file by its path below the folder."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(lambda name: zlib.crc32(map_file(folder / name)), names), strict=True))


def _check_files(folder: Path, expected: Mapping[str, int]) -> None:
    found = _checksums(folder)
    for name, checksum in expected.items():
        if name not in found:
            raise CheckpointError(folder / name, "is missing; convert the checkpoint again")
        if found[name] != checksum:
            raise CheckpointError(folder / name, "has changed since it was written; convert the checkpoint again")


def _write_leaves(path: Path, leaves: Mapping[str, Any], shards: int | None) -> None:
    import orbax.checkpoint as ocp

    target = None
    arguments = None
    if shards is not None:
        target = max(1, -(-sum(int(leaf.nbytes) for leaf in leaves.values()) // shards))
        # Orbax fills a file until it passes its target size: chunks well below it keep the files even.
        arguments = {name: ocp.SaveArgs(chunk_byte_size=max(1, target // 8)) for name in leaves}
    # Weights hardly compress, and reading them back uncompressed is faster.
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        order = ocp.args.PyTreeSave(dict(leaves), save_args=arguments, ocdbt_target_data_file_size=target)
        checkpointer.save(path, args=order)


def _read_leaves(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    import jax
    import orbax.checkpoint as ocp

    def placed(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

    arguments = {name: placed(leaf) for name, leaf in wanted.items()}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    with ocp.Checkpointer(handler) as checkpointer:
        order = ocp.args.PyTreeRestore(item=dict(wanted), restore_args=arguments)
        return dict(checkpointer.restore(path, args=order))


def _write_side_files(
    directory: Path, source: Checkpoint, leaves: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the tokenizer's files; returns what the marker says so far."""
    try:
        files = source.tokenizer_files
    except CheckpointError:  # a source without a tokenizer stays one
        files = TokenizerFiles(None, None, None, {})
    if files.tokenizer_json is not None:
        (directory / side_files.TOKENIZER_JSON).write_bytes(files.tokenizer_json)
    if files.sentencepiece is not None:
        (directory / side_files.SENTENCEPIECE).write_bytes(files.sentencepiece)
    if files.gguf is not None:
        _write_json(directory / VOCABULARY, dataclasses.asdict(files.gguf))
    return {
        "format_version": FORMAT_VERSION,
        "model_type": source.model_type,
        "config": dict(source.config),
        "generation_config": dict(source.generation_config),
        "tokenizer_config": dict(files.config),
        "chat_template": source.chat_template,
        "eos_token_ids": list(source.eos_token_ids),
        "source": {"format": source.format, "name": source.path.name, "fingerprint": source.fingerprint},
        "metadata": dict(metadata),
        "tensors": {
            name: {"shape": list(leaf.shape), "dtype": str(np.dtype(leaf.dtype))} for name, leaf in leaves.items()
        },
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _vocabulary(path: Path) -> GgufVocabulary:
    content = read_json(path)
    names = {field.name for field in dataclasses.fields(GgufVocabulary)}
    lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
    if content.keys() != names or not lists.get("tokens"):
        raise CheckpointError(path, "is corrupt (its entries are not those of a vocabulary)")
    return GgufVocabulary(**(content | lists))
