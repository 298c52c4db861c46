"""The model by hand: the example of docs/research.md is run as it stands there, and what it says of bits is checked."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfold
from jaxfold.checkpoints import CheckpointError
from tests.tiny_engines import TINY
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "research.md"
REPLY = 8


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


@pytest.fixture(scope="module")
def client(programs_dir: Path) -> Iterator[Client]:
    engine = tiny_engine("llama", programs_dir)
    yield Client(engine)
    engine.close()


@pytest.fixture(scope="module")
def model() -> jaxfold.Model:
    return jaxfold.load(TINY / "llama")


def test_the_example_gives_the_engines_greedy_reply(client: Client) -> None:
    names: dict[str, Any] = {"PATH": TINY / "llama"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example(), str(DOCUMENT), "exec"), names)
    ids, model = names["ids"], names["model"]
    assert model.tokenizer.decode(ids) == "The capital of France is"
    assert names["reply"] == client.run(Ask(tuple(ids), REPLY)).ids
    assert printed.getvalue().splitlines()[0] == f"({len(ids)}, {model.cfg.vocab_size})"
    assert printed.getvalue().endswith(model.tokenizer.decode(names["reply"]) + "\n")
    assert (names["scores"].dtype, names["scores"].shape) == (jnp.float32, (1, model.cfg.vocab_size))
    for pool in (*names["cache"].keys, *names["cache"].values):
        assert pool.shape == (model.cfg.num_kv_heads, 1 + 512 // 64, 64, model.cfg.head_dim)


def test_rows_have_the_same_bits_whole_in_pieces_and_decoded(model: jaxfold.Model) -> None:
    tokens = np.random.default_rng(5).integers(0, model.cfg.vocab_size, 24).astype(np.int32)
    other = tokens[::-1].copy()
    whole, _ = model.prefill(model.new_cache(1, 256), jnp.asarray(tokens), lane=0, start=0, lanes=1)
    bits = np.asarray(whole).view(np.uint32)
    # In pieces of 8 in the second of two conversations, then the last piece token by token beside the other one.
    cache = model.new_cache(lanes=2, context=256)
    for lane, text in ((1, tokens), (0, other)):
        for start in range(0, 16, 8):
            piece = jnp.asarray(text[start : start + 8])
            scores, cache = model.prefill(cache, piece, lane=lane, start=start, lanes=2)
            assert scores.shape == (8, model.cfg.vocab_size)
            if lane == 1:
                np.testing.assert_array_equal(np.asarray(scores).view(np.uint32), bits[start : start + 8])
    for position in range(16, 24):
        pair = jnp.array([other[position], tokens[position]], jnp.int32)
        scores, cache = model.decode(cache, pair, jnp.array([position, position], jnp.int32))
        assert scores.shape == (2, model.cfg.vocab_size)
        np.testing.assert_array_equal(np.asarray(scores)[1].view(np.uint32), bits[position])


def test_the_weights_are_a_pytree_of_the_dtype_asked_for(model: jaxfold.Model) -> None:
    assert model.weights.layers[0].qkv.dtype == jnp.bfloat16 and model.cfg.compute_dtype == "bfloat16"
    wide = jaxfold.load(str(TINY / "llama"), dtype="f32")
    assert {leaf.dtype for leaf in jax.tree.leaves(wide.weights)} == {jnp.dtype("float32")}
    assert wide.new_cache(1, 10).keys[0].shape[1:3] == (1 + 256 // 64, 64), "a context is whole key blocks"


def test_wrong_arguments_are_refused(model: jaxfold.Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype must be one of f32, bf16, not 'f16'"):
        jaxfold.load(TINY / "llama", dtype="f16")
    with pytest.raises(CheckpointError, match="there is no such file"):
        jaxfold.load(tmp_path / "nothing")
    tokens = jnp.zeros(8, jnp.int32)
    for lane, start in ((2, 0), (-1, 0), (0, -1), (0, 249), (1, 300)):
        with pytest.raises(ValueError, match="outside a cache of 2 conversations of 256 tokens"):
            model.prefill(model.new_cache(lanes=2, context=256), tokens, lane=lane, start=start, lanes=2)
