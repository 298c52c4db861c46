"""Damaged files: whatever is cut, flipped or claimed, it opens or is refused by name, without a large allocation."""

import contextlib
import json
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import open_checkpoint

EXAMPLES = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Ten times what the tiny files need; a count taken at its word would ask for gigabytes.
MEMORY = 20 << 20


def use(path: Path) -> None:
    """Open a checkpoint and read all of it; a refusal names a file."""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.tensors:
            checkpoint.read(name)
        _ = checkpoint.tokenizer_files
    except CheckpointError as error:
        folder = path if path.is_dir() else path.parent
        assert str(error).startswith(str(folder))
        assert "\n" not in error.reason
        raise
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY


@pytest.fixture
def gguf_path(tiny_gguf, random_blocks):
    kind = gguf.GGMLQuantizationType.Q4_1
    return tiny_gguf(tensors={"blk.0.ffn_up.weight": (random_blocks(kind, 4, 64), kind)})


@pytest.fixture
def hf_path(tiny_hf):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.int8)}
    return tiny_hf(tensors, files={"tokenizer.json": {"model": {}}}) / "model.safetensors"


@EXAMPLES
@given(data=st.data())
def test_gguf_cut_or_flipped_anywhere(data, gguf_path):
    whole = gguf_path.read_bytes()
    header = whole.index(b"token_embd.weight") + 2000
    damaged = bytearray(whole)
    try:
        for at in data.draw(st.lists(st.integers(0, header), max_size=4), label="flipped"):
            damaged[at] = data.draw(st.integers(0, 255), label="byte")
        cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)), label="length")
        gguf_path.write_bytes(damaged[:cut])
        with contextlib.suppress(CheckpointError):
            use(gguf_path)
    finally:
        gguf_path.write_bytes(whole)


def test_gguf_cut_at_every_byte_of_its_tensor_list(gguf_path):
    whole = gguf_path.read_bytes()
    first = whole.index(b"token_embd.weight") - 8
    for length in [*range(0, 64), *range(first, first + 200), len(whole) - 1]:
        gguf_path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
            use(gguf_path)


@pytest.mark.parametrize("value", [2**31 - 1, 2**32, 2**62, 2**64 - 1])
def test_gguf_counts_are_not_believed(value, gguf_path):
    whole = gguf_path.read_bytes()
    tokens = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    embedding = whole.index(b"token_embd.weight") + len(b"token_embd.weight") + 4
    # Tensor count, field count, first key's length, the token list's length, a tensor's width and its offset.
    for at in (8, 16, 24, tokens, embedding, embedding + 20):
        gguf_path.write_bytes(whole[:at] + struct.pack("<Q", value) + whole[at + 8 :])
        with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
            use(gguf_path)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, b"GGML", "is not a GGUF file"),
        (4, struct.pack("<I", 1), "is version 1 GGUF"),
        (4, struct.pack(">I", 3), "is big-endian GGUF"),
        ("rank", struct.pack("<I", 77), "has 77 dimensions"),
        ("width", struct.pack("<Q", 0), "is empty"),
        ("type", struct.pack("<I", 999), "unknown quantisation type (id 999)"),
        ("type", struct.pack("<I", 31), "unknown quantisation type (id 31)"),
        ("type", struct.pack("<I", 12), "not whole Q4_K blocks"),
        ("offset", struct.pack("<Q", 1), "is not aligned"),
        ("offset", struct.pack("<Q", 64), "overlaps another tensor"),
        ("offset", struct.pack("<Q", 1 << 40), "is truncated"),
    ],
)
def test_gguf_refusals_say_what_is_wrong(at, value, words, gguf_path):
    whole = gguf_path.read_bytes()
    name = b"token_embd.weight"
    rank = whole.index(name) + len(name)
    places = {"rank": rank, "width": rank + 4, "type": rank + 20, "offset": rank + 24}
    at = places.get(at, at)
    gguf_path.write_bytes(whole[:at] + value + whole[at + len(value) :])
    with pytest.raises(CheckpointError) as caught:
        use(gguf_path)
    assert words in str(caught.value)


@EXAMPLES
@given(data=st.data())
def test_safetensors_cut_or_flipped_anywhere(data, hf_path):
    whole = hf_path.read_bytes()
    damaged = bytearray(whole)
    try:
        for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4), label="flipped"):
            damaged[at] = data.draw(st.integers(0, 255), label="byte")
        cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)), label="length")
        hf_path.write_bytes(damaged[:cut])
        with contextlib.suppress(CheckpointError):
            use(hf_path.parent)
    finally:
        hf_path.write_bytes(whole)


def test_safetensors_cut_at_every_byte(hf_path):
    whole = hf_path.read_bytes()
    for length in range(len(whole)):
        hf_path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            use(hf_path.parent)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": entry("F33")}, "tensor 'a': has an unknown type"),
        ({"a": entry(dtype=None)}, "tensor 'a': has an unknown type"),
        ({"a": entry(shape=(-2,))}, "not whole numbers"),
        ({"a": entry(shape=(True, 2))}, "not whole numbers"),
        ({"a": entry(shape=(2.0,))}, "not whole numbers"),
        ({"a": entry(shape=(1,) * 40 + (2,))}, "not whole numbers"),
        ({"a": entry(offsets=(8, 0))}, "in -8 bytes"),
        ({"a": entry(shape=(2**40, 2**40))}, "is corrupt"),
        ({"a": entry(shape=(0, 2**61), offsets=(0, 0))}, "is corrupt"),
        ({"a": entry(offsets=(0, 2**70))}, "not whole numbers"),
        ({"a": entry(offsets=(8, 16))}, "leaves a gap"),
        ({"a": entry(), "b": entry()}, "overlaps another tensor"),
        ({"a": entry(), "b": entry(offsets=(8, 16))}, "tensor 'b': is truncated"),
        ({"a": {"dtype": "F32"}}, "header entry is incomplete"),
        ({"a": 5}, "header entry is incomplete"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, "header entry is incomplete"),
        ({"a": entry(shape=(1,), offsets=(0, 4))}, "4 bytes after the last tensor"),
        ({"a": entry(), "__metadata__": {"k": 1}}, "its metadata"),
        (b'{"a": NaN}', "NaN is not a value"),
        (b"[1]", "should hold a JSON object"),
        (b"{" * 50_000, "is not"),
    ],
)
def test_safetensors_headers_that_lie(header, words, hf_path):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    hf_path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(CheckpointError) as caught:
        use(hf_path.parent)
    assert words in str(caught.value)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [9, 1 << 20, 99_999_999, 1 << 40, 2**64 - 1])
def test_safetensors_header_length_past_the_file(length, hf_path):
    hf_path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is not a safetensors file or is truncated"):
        use(hf_path.parent)


def test_an_empty_array_is_no_damage(hf_path):
    save_file({"a": np.zeros((0, 3), np.float32), "b": np.ones(2, np.float32)}, hf_path)
    assert open_checkpoint(hf_path.parent).read("a").shape == (0, 3)
