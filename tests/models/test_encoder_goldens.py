"""Vectors against those of transformers: tiny encoders of both families in both formats, and the real MiniLM."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint
from jaxfold.models.config import ConfigError
from jaxfold.models.encoder_families import encoder_config
from jaxfold.runtime.encoders.loader import read_encoder_config
from jaxfold.tokenizers import TokenizerError
from jaxfold.tokenizers.encoder import load_encoder_tokenizer
from tests.models.encoder_support import ENCODERS
from tests.models.encoder_support import POOLING
from tests.models.encoder_support import cosines
from tests.models.encoder_support import golden
from tests.models.encoder_support import load
from tests.models.encoder_support import pooled

sys.path.append(str(ENCODERS.parent))
from encoder_gguf import write_encoder_gguf

LEAST = {"float32": 0.999999, "bfloat16": 0.999, "int8": 0.999}
# Weights in int8 are for machines where memory counts more than the third digit; they are never the default.
MINILM_LEAST = {"float32": 0.9999, "bfloat16": 0.999, "int8": 0.998}


@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize("name", POOLING)
def test_tiny_encoders_agree_with_transformers(name: str, dtype: str) -> None:
    wanted, encoder = golden(name), load(ENCODERS / name, dtype)
    assert encoder.tokenizer.encode(wanted.texts) == list(wanted.ids)
    found = pooled(encoder, wanted.ids, 256)
    assert cosines(found, wanted.vectors).min() >= LEAST[dtype]


@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", POOLING)
def test_a_gguf_file_is_the_same_encoder(name: str, stored: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.gguf"
    write_encoder_gguf(ENCODERS / name, path, POOLING[name], stored)
    wanted, encoder = golden(name), load(path, "float32")
    assert encoder.tokenizer.encode(wanted.texts) == list(wanted.ids)
    found = pooled(encoder, wanted.ids, 256)
    assert cosines(found, wanted.vectors).min() >= (0.999999 if stored == "F32" else 0.999)
    if stored == "F32":
        np.testing.assert_array_equal(found, pooled(load(ENCODERS / name, "float32"), wanted.ids, 256))


@pytest.fixture
def plain_xla(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention without the compiled kernel, as on machines that have none."""
    jax.clear_caches()
    monkeypatch.setattr("pallas_kernels.packed_attention.dispatch.implementation", lambda: "xla")
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("plain_xla")
@pytest.mark.parametrize("name", POOLING)
def test_without_the_compiled_kernel(name: str) -> None:
    wanted, encoder = golden(name), load(ENCODERS / name, "float32")
    together = pooled(encoder, wanted.ids, 256)
    assert cosines(together, wanted.vectors).min() >= LEAST["float32"]
    for index in (0, 3):
        np.testing.assert_array_equal(pooled(encoder, [wanted.ids[index]], 64)[0], together[index])


@pytest.mark.real_model
@pytest.mark.parametrize("dtype", MINILM_LEAST)
def test_minilm_agrees_with_transformers(minilm_path: Path, dtype: str) -> None:
    wanted, encoder = golden("minilm"), load(minilm_path, dtype)
    assert encoder.tokenizer.encode(wanted.texts) == list(wanted.ids)
    found = pooled(encoder, wanted.ids, 512 + 128)
    assert cosines(found, wanted.vectors).min() >= MINILM_LEAST[dtype]


def changed(folder: Path, name: str, file: str, change: Any) -> Path:
    """A copy of a tiny checkpoint with one JSON file changed."""
    copy = folder / name
    shutil.copytree(ENCODERS / name, copy)
    content = json.loads((copy / file).read_text(encoding="utf-8"))
    (copy / file).write_text(json.dumps(change(content)), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("modules.json", lambda m: m[:1], "names 0 pooling modules"),
        ("modules.json", lambda m: [*m, {"type": "a.Dense", "path": "3_Dense"}], "asks for a Dense module"),
        ("modules.json", lambda m: [{**one, "path": "../x"} for one in m], "no plain name"),
        ("modules.json", lambda m: {}, "a JSON list"),
        ("1_Pooling/config.json", lambda p: {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ("1_Pooling/config.json", lambda p: {}, "no mode"),
        ("config.json", lambda c: {**c, "model_type": "llama"}, "'llama' is no supported encoder"),
        ("config.json", lambda c: {**c, "position_embedding_type": "relative_key"}, "relative_key"),
        ("config.json", lambda c: {**c, "hidden_act": "silu"}, "'silu' is not supported"),
        ("config.json", lambda c: {**c, "num_hidden_layers": 9000}, "9000 layers"),
    ],
)
def test_what_would_run_wrongly_is_refused(file: str, change: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words.replace("(", r"\(")):
        read_encoder_config(open_checkpoint(changed(tmp_path, "bert", file, change)))


def test_pooling_by_name_and_by_last_token(tmp_path: Path) -> None:
    copy = changed(tmp_path, "bert", "1_Pooling/config.json", lambda _: {"pooling_mode": "lasttoken"})
    assert read_encoder_config(open_checkpoint(copy)).pooling == "last"
    ids = golden("bert").ids
    last, first = load(copy, "float32"), load(ENCODERS / "bert", "float32")
    assert not np.allclose(pooled(last, ids, 256), pooled(first, ids, 256), atol=0.1)
    (copy / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no modules\.json"):
        read_encoder_config(open_checkpoint(copy))


def test_a_gguf_file_without_pooling_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "encoder.gguf"
    write_encoder_gguf(ENCODERS / "bert", path, "mean")
    data = path.read_bytes().replace(b"bert.pooling_type", b"bert.pooling_typo")
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="pooling type None"):
        read_encoder_config(open_checkpoint(path))


def test_a_config_without_a_family_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match="bert, roberta, xlm-roberta"):
        encoder_config({"model_type": "t5"}, "mean")


@pytest.mark.parametrize("name", POOLING)
def test_a_cut_text_still_ends_as_it_should(name: str) -> None:
    tokenizer, wanted = load(ENCODERS / name, "float32").tokenizer, golden(name)
    whole = list(wanted.ids[1])
    assert tokenizer.encode([wanted.texts[1]], most=9) == [[*whole[:8], whole[-1]]]
    assert tokenizer.encode([wanted.texts[1]], most=len(whole)) == [whole]


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    files = open_checkpoint(ENCODERS / "bert").tokenizer_files
    with pytest.raises(TokenizerError, match="has only 10 rows"):
        load_encoder_tokenizer(files, 10)
