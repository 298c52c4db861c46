"""A Hugging Face directory: config.json, one or more safetensors files, and the tokenizer's files."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxfold.checkpoints import side_files
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.base import TensorInfo
from jaxfold.checkpoints.base import TokenizerFiles
from jaxfold.checkpoints.files import fingerprint
from jaxfold.checkpoints.files import read_json
from jaxfold.checkpoints.safetensors_header import SafetensorsFile
from jaxfold.checkpoints.safetensors_header import read_header

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# How a multimodal wrapper prefixes its text model's tensors, in two generations of the library.
_TEXT_PREFIXES = (("language_model.", ""), ("model.language_model.", "model."))
_TEXT_NAMES = ("model.", "lm_head.")
_OTHER_PARTS = ("model.vision_tower.", "model.multi_modal_projector.", "model.visual.", "model.audio_tower.")


class SafetensorsCheckpoint:
    """A Hugging Face directory opened for reading: see `jaxfold.checkpoints.base.Checkpoint`.

    Of a multimodal checkpoint only the text model is shown, under the names it would have alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = "safetensors"
        config_path = path / side_files.CONFIG
        if not config_path.is_file():
            raise CheckpointError(config_path, "is missing")
        whole_config = read_json(config_path)
        self.config: Mapping[str, Any] = side_files.model_config(config_path, whole_config)
        self.model_type: str = self.config["model_type"]
        _refuse_quantised(config_path, whole_config)
        self._places = _open_shards(path)
        if "text_config" in whole_config:
            self._places = _text_only(self._places)
        if not self._places:
            raise CheckpointError(path, "holds no tensors of a text model")
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(file.tensors[stored].shape, file.tensors[stored].stored)
            for name, (file, stored) in self._places.items()
        }
        generation_path = path / side_files.GENERATION_CONFIG
        self.generation_config: Mapping[str, Any] = side_files.optional_json(generation_path)
        self._settings = side_files.tokenizer_settings(path)
        self.chat_template = side_files.chat_template(path, self._settings)
        self.eos_token_ids = side_files.eos_ids(
            path, self._settings, (config_path, self.config), (generation_path, self.generation_config)
        )
        self.fingerprint = self._fingerprint()

    def _fingerprint(self) -> str:
        names = (*side_files.SIDE_FILES, INDEX)
        beside = [(self.path / name, b"") for name in names if (self.path / name).is_file()]
        shards = {file.path: file for file, _ in self._places.values()}
        return fingerprint(
            [*beside, *((path, shards[path].data[: shards[path].header_bytes]) for path in sorted(shards))]
        )

    @cached_property
    def tokenizer_files(self) -> TokenizerFiles:
        """The tokenizer's files. Raises CheckpointError where the directory has none."""
        return side_files.tokenizer_files(self.path, self._settings)

    def read(self, name: str) -> np.ndarray:
        """See `Checkpoint.read`. The array is a read-only view of the file."""
        if name not in self._places:
            raise CheckpointError(self.path, "is not in the checkpoint", name)
        file, stored = self._places[name]
        return file.read(stored)


def _refuse_quantised(path: Path, config: Mapping[str, Any]) -> None:
    # Such directories hold packed integers under the names of plain weights.
    for key in ("quantization_config", "quantization"):
        settings = config.get(key)
        if settings:
            method = settings.get("quant_method") if isinstance(settings, dict) else None
            reason = f"says the weights are quantised ({method or key}); only plain ones can be read from safetensors"
            raise CheckpointError(path, reason)


def _open_shards(directory: Path) -> dict[str, tuple[SafetensorsFile, str]]:
    """Every tensor's file and stored name, by the index where there is one."""
    index = directory / INDEX
    if index.is_file():
        return _indexed(index)
    whole = directory / WHOLE
    paths = [whole] if whole.is_file() else sorted(directory.glob("*.safetensors"))
    if not paths:
        found = "PyTorch .bin files, which are not read" if any(directory.glob("*.bin")) else "none"
        raise CheckpointError(directory, f"has no safetensors files (found {found})")
    places: dict[str, tuple[SafetensorsFile, str]] = {}
    for path in paths:
        file = read_header(path)
        for name in file.tensors:
            if name in places:
                raise CheckpointError(path, f"also occurs in {places[name][0].path.name}", name)
            places[name] = (file, name)
    return places


def _indexed(index: Path) -> dict[str, tuple[SafetensorsFile, str]]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(index, "has no weight_map")
    files: dict[str, SafetensorsFile] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", "..") or "\0" in shard:
            raise CheckpointError(index, f"names a shard that is no plain file name ({shard!r:.80})", name)
        if shard not in files:
            path = index.with_name(shard)
            if not path.is_file():
                raise CheckpointError(path, f"is missing ({index.name} names it)", name)
            files[shard] = read_header(path)
        if name not in files[shard].tensors:
            raise CheckpointError(files[shard].path, f"is not in this shard, though {index.name} says so", name)
    return {name: (files[shard], name) for name, shard in weight_map.items()}


def _text_only(places: Mapping[str, tuple[SafetensorsFile, str]]) -> dict[str, tuple[SafetensorsFile, str]]:
    """The text model's tensors under the names they would have without the wrapper."""
    found: dict[str, tuple[SafetensorsFile, str]] = {}
    for name, place in places.items():
        for prefix, plain in _TEXT_PREFIXES:
            if name.startswith(prefix):
                found[plain + name.removeprefix(prefix)] = place
                break
        else:
            if name.startswith(_TEXT_NAMES) and not name.startswith(_OTHER_PARTS):
                found[name] = place
    return found
