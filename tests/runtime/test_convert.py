"""Conversion: the weights come back leaf by leaf, and the copy answers as its source does, whatever dtype is asked."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.models import Weights
from jaxfold.models.layers.matrix import Int8Matrix
from jaxfold.runtime.convert import convert
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.weights import is_quantised
from jaxfold.runtime.weights import load_weights
from jaxfold.runtime.weights import read_config
from jaxfold.runtime.weights import tree_bytes
from tests.golden.gguf_writer import write_gguf
from tests.models.golden_support import Model
from tests.models.golden_support import Runner
from tests.models.golden_support import load_model
from tests.models.golden_support import load_vocabulary
from tests.models.golden_support import tiny_folder
from tests.models.golden_support import tiny_golden
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import FAMILIES
from tests.tiny_engines import LANES
from tests.tiny_engines import PAGE
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "convert_checkpoint.py"
TEXT = "Grüße, 世界! <|im_end|> 123\n\n\tdef f(x): return x"


def weights_of(path: Path, dtype: Any) -> Weights:
    checkpoint = open_checkpoint(path)
    cfg, family = read_config(checkpoint)
    return load_weights(checkpoint, cfg, family, jnp.dtype(dtype), None)


def assert_same_bits(found: Weights, wanted: Weights) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_same_side(copy: Path, source: Path) -> None:
    """Settings, template, end ids and the tokenizer came along."""
    ours, theirs = open_checkpoint(copy), open_checkpoint(source)
    assert (ours.format, ours.model_type) == ("orbax", theirs.model_type)
    assert ours.config == theirs.config
    assert ours.chat_template == theirs.chat_template and ours.chat_template is not None
    assert ours.eos_token_ids == theirs.eos_token_ids != ()
    assert ours.generation_config == theirs.generation_config
    assert read_config(ours)[0] == read_config(theirs)[0]
    mine, original = load_vocabulary(copy), load_vocabulary(source)
    for special in (False, True):
        ids = original.encode(TEXT, parse_special=special)
        assert mine.encode(TEXT, parse_special=special) == ids
        assert mine.decode(ids) == original.decode(ids)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(TINY / "llama", path, "Q8_0")
    return path


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("name", [*FAMILIES, "llama_bias", "gguf"])
def test_a_copy_holds_the_bits_of_its_source(name: str, shards: int | None, gguf: Path, tmp_path: Path) -> None:
    source, copy = gguf if name == "gguf" else TINY / name, tmp_path / "copy"
    size = convert(source, copy, shards=shards)
    kept = jnp.int8 if name == "gguf" else jnp.bfloat16
    wanted = weights_of(source, kept)
    assert_same_bits(weights_of(copy, kept), wanted)
    assert size == tree_bytes(wanted)
    assert_same_side(copy, source)


@pytest.mark.parametrize("name", [*FAMILIES, "gguf"])
def test_a_copy_gives_the_logit_bits_of_its_source(name: str, gguf: Path, tmp_path: Path) -> None:
    """In float32, in the shapes of the golden tests, whose programs these are."""
    source, copy = gguf if name == "gguf" else TINY / name, tmp_path / "copy"
    convert(source, copy, shards=2, dtype="f32")
    prompt = tiny_golden("llama").prompts[0]

    def logits(model: Model) -> np.ndarray:
        return Runner(model, lanes=2, columns=48).prefill(0, prompt)

    found = logits(load_model(copy, "float32"))
    np.testing.assert_array_equal(found, logits(load_model(source, "float32")))
    assert np.isfinite(found).all() and len(np.unique(found)) > found.size // 4


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_copy_of_float32_serves_in_either_dtype(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    convert(TINY / name, tmp_path / "copy", dtype="f32")
    assert open_checkpoint(tmp_path / "copy").tensors["layers.0.qkv"].stored == "float32"
    for dtype in (jnp.float32, jnp.bfloat16):
        assert_same_bits(weights_of(tmp_path / "copy", dtype), weights_of(TINY / name, dtype))
    assert not caplog.records


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_copy_of_bfloat16_read_as_float32_keeps_its_values_and_says_so(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy"
    convert(TINY / name, copy)
    rounded = weights_of(TINY / name, jnp.bfloat16)
    widened = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded)
    with caplog.at_level(logging.WARNING):
        assert_same_bits(weights_of(copy, jnp.float32), widened)
    (record,) = caplog.records
    assert str(copy) in record.getMessage() and "they stay rounded" in record.getMessage()


def test_the_engine_serves_a_copy_as_its_source(tmp_path: Path, programs_dir: Path) -> None:
    """Through the whole loader. The context is that of the other engines of the tests, whose programs these are."""
    source = tiny_folder("llama", tmp_path, changes={"max_position_embeddings": CONTEXT})
    convert(source, tmp_path / "bf16", shards=2)
    convert(source, tmp_path / "f32", dtype="f32")
    options = EngineOptions(model=source, parallel=LANES, page_size=PAGE, compile_cache_dir=programs_dir)
    replies = []
    for model in (source, tmp_path / "bf16", tmp_path / "f32"):
        loaded = load_engine(replace(options, model=model))
        try:
            assert loaded.engine.info.weight_dtype == "bf16"
            assert loaded.name == model.name
            prompt = tuple(loaded.tokenizer.encode("The capital of France is"))
            replies.append(Client(loaded.engine).run(Ask(prompt, 40)).ids)
        finally:
            loaded.engine.close()
    assert replies[1] == replies[0] == replies[2] and len(set(replies[0])) > 3


def test_a_quantised_source_is_kept_in_int8(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, copy = tmp_path / "model.gguf", tmp_path / "copy"
    write_gguf(TINY / "llama", source, "Q8_0")
    convert(source, copy)
    wanted = weights_of(source, jnp.int8)
    assert is_quantised(open_checkpoint(source)) and is_quantised(open_checkpoint(copy))
    assert not is_quantised(open_checkpoint(TINY / "llama"))
    assert_same_bits(weights_of(copy, jnp.int8), wanted)
    with caplog.at_level(logging.WARNING):
        wide = weights_of(copy, jnp.float32)
    assert "int8 values: kept as float32 they stay rounded" in caplog.text
    first = wanted.layers[0].down
    assert isinstance(first, Int8Matrix)
    np.testing.assert_array_equal(
        np.asarray(wide.layers[0].down), np.asarray(first.values, np.float32) * np.asarray(first.scales)[:, None]
    )


@pytest.mark.parametrize("stored", ["bf16", "f32"])
def test_a_plain_copy_can_be_served_in_int8(tmp_path: Path, stored: Any) -> None:
    convert(TINY / "llama", tmp_path / "copy", dtype=stored)
    copy = weights_of(tmp_path / "copy", jnp.int8)
    assert isinstance(copy.embed, Int8Matrix)
    if stored == "f32":
        assert_same_bits(copy, weights_of(TINY / "llama", jnp.int8))


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    convert(TINY / "llama", copy)
    before = sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*"))
    with pytest.raises(CheckpointError, match=r"copy: already exists"):
        convert(TINY / "llama", copy)
    with pytest.raises(CheckpointError, match=r"copy: is already a converted checkpoint"):
        convert(copy, tmp_path / "again")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"file: already exists"):
        convert(TINY / "llama", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(CheckpointError, match=r"file/copy: cannot be written"):
        convert(TINY / "llama", tmp_path / "file" / "copy")
    assert sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*")) == before
    assert not (tmp_path / "again").exists()


def test_an_existing_target_is_refused_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").touch()
    with pytest.raises(CheckpointError, match="target: already exists"):
        convert(tmp_path / "no-such-source", tmp_path / "target")


def test_an_empty_folder_may_be_the_target(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    convert(TINY / "llama", tmp_path / "target")
    assert open_checkpoint(tmp_path / "target").format == "orbax"


def test_settings_that_lie_about_the_copy_are_refused(tmp_path: Path) -> None:
    convert(TINY / "llama", tmp_path / "copy")
    marker = tmp_path / "copy" / "jaxfold.json"
    content = json.loads(marker.read_text())
    content["config"]["intermediate_size"] *= 2
    marker.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tensor 'layers\.0\.gate_up': is stored as bfloat16"):
        weights_of(tmp_path / "copy", jnp.bfloat16)


def test_the_script_is_the_command(tmp_path: Path) -> None:
    done = call_script(TINY / "qwen2", tmp_path / "copy", "--shards", "2", "--dtype", "f32")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'copy'}\n"), done.stderr
    assert_same_bits(weights_of(tmp_path / "copy", jnp.float32), weights_of(TINY / "qwen2", jnp.float32))
    again = call_script(TINY / "qwen2", tmp_path / "copy")
    assert again.returncode == 2 and "already there" in again.stderr and "Traceback" not in again.stderr


def call_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
