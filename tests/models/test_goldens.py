"""Our models against Hugging Face transformers: tiny random checkpoints of every family, and the real SmolLM2.

The expected outputs were made by scripts/make_goldens.py; nothing here needs torch.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from tests.golden.gguf_writer import read_weights
from tests.golden.gguf_writer import round_trip
from tests.golden.gguf_writer import write_gguf
from tests.models.golden_support import GOLDEN
from tests.models.golden_support import TINY
from tests.models.golden_support import Model
from tests.models.golden_support import Runner
from tests.models.golden_support import load_model
from tests.models.golden_support import load_vocabulary
from tests.models.golden_support import read_json
from tests.models.golden_support import tiny_folder
from tests.models.golden_support import tiny_golden
from tests.models.golden_support import wrap_multimodal

# Two right float32 computations of these logits (spread 3, largest about 12) differ by up to 5e-5.
TINY_RTOL = 1e-4
TINY_ATOL = 2e-4
TINY_COLUMNS = 48
TINY_LANES = 2

MODELS = ("llama", "llama_bias", "qwen2", "qwen3", "gemma3")
CASES = [(name, "") for name in MODELS] + [("llama", "rope_llama3"), ("llama", "rope_linear")]


def tiny_logits(path: Path, prompts: tuple[list[int], ...]) -> list[np.ndarray]:
    runner = Runner(load_model(path, "float32"), lanes=TINY_LANES, columns=TINY_COLUMNS)
    return [runner.prefill(0, ids) for ids in prompts]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_tiny_logits_and_greedy_reply_equal_transformers(name: str, variant: str, tmp_path: Path) -> None:
    expected = tiny_golden(name, variant)
    model = load_model(tiny_folder(name, tmp_path, variant), "float32")
    runner = Runner(model, lanes=TINY_LANES, columns=TINY_COLUMNS)
    for lane, ids in enumerate(expected.prompts):
        np.testing.assert_allclose(runner.prefill(lane, ids), expected.logits[lane], rtol=TINY_RTOL, atol=TINY_ATOL)
    assert runner.greedy(expected.prompts, len(expected.greedy[0])) == list(expected.greedy)


@pytest.mark.parametrize("name", MODELS)
def test_config_as_newer_transformers_writes_it_means_the_same(name: str, tmp_path: Path) -> None:
    """transformers 5 writes rope_parameters and dtype where older files have rope_theta, rope_scaling, torch_dtype."""
    old = load_model(tiny_folder(name, tmp_path), "float32").cfg
    new = load_model(tiny_folder(name, tmp_path, "saved_by_v5"), "float32").cfg
    assert new == old


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_gemma3_is_the_text_model(prefix: str, tmp_path: Path) -> None:
    expected = tiny_golden("gemma3")
    folder = tiny_folder("gemma3", tmp_path)
    wrap_multimodal(folder, prefix)
    for found, golden in zip(tiny_logits(folder, expected.prompts), expected.logits, strict=True):
        np.testing.assert_allclose(found, golden, rtol=TINY_RTOL, atol=TINY_ATOL)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope_theta": 20000.0}),
        ("llama", {"rms_norm_eps": 1e-2}),
        ("qwen3", {"rope_theta": 10000.0}),
        ("gemma3", {"sliding_window": 9}),
        ("gemma3", {"sliding_window_pattern": 3}),
        ("gemma3", {"query_pre_attn_scalar": 24}),
        ("gemma3", {"rope_local_base_freq": 20000.0}),
        ("gemma3", {"rope_scaling": None}),
    ],
)
def test_a_wrong_setting_would_show(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """The expected outputs depend on each of these settings, so equality with them says that it was read."""
    expected = tiny_golden(name)
    found = tiny_logits(tiny_folder(name, tmp_path, changes=changes), expected.prompts[:1])[0]
    assert np.abs(found - expected.logits[0]).max() > 100 * TINY_ATOL


def gguf_settings(name: str) -> dict[str, Any]:
    """Gemma's attention scale has no GGUF key: files of this size are run with head_dim."""
    return {"query_pre_attn_scalar": read_json(TINY / name / "config.json")["head_dim"]} if name == "gemma3" else {}


@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_gguf_gives_the_bits_of_the_same_safetensors(name: str, stored: str, tmp_path: Path) -> None:
    prompts = tiny_golden(name).prompts
    folder = tiny_folder(name, tmp_path, changes=gguf_settings(name))
    write_gguf(folder, tmp_path / "model.gguf", stored)
    rounded = {key: round_trip(weight, stored) for key, weight in read_weights(folder).items()}
    for file in folder.glob("model*"):
        file.unlink()
    save_file(rounded, folder / "model.safetensors")
    from_gguf = tiny_logits(tmp_path / "model.gguf", prompts)
    for ours, theirs in zip(from_gguf, tiny_logits(folder, prompts), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("variant", ["rope_llama3", "rope_linear"])
def test_gguf_rope_scaling_equals_transformers(variant: str, tmp_path: Path) -> None:
    """llama3 scaling stands in a GGUF file as a tensor of divisors, linear scaling as metadata."""
    expected = tiny_golden("llama", variant)
    write_gguf(tiny_folder("llama", tmp_path, variant), tmp_path / "model.gguf")
    for found, golden in zip(tiny_logits(tmp_path / "model.gguf", expected.prompts), expected.logits, strict=True):
        np.testing.assert_allclose(found, golden, rtol=TINY_RTOL, atol=TINY_ATOL)


@pytest.fixture(scope="module")
def smollm2_f32(smollm2_path: Path) -> Runner:
    """Float32 with a lane for each prompt of greedy.json; one for the tests that use it, as compiling takes longest."""
    return Runner(load_model(smollm2_path, "float32"), lanes=20, columns=64)


@pytest.mark.real_model
def test_smollm2_prompts_get_the_ids_of_the_reference_tokenizer(smollm2_path: Path) -> None:
    tokenizer = load_vocabulary(smollm2_path)
    for case in read_json(GOLDEN / "smollm2" / "greedy.json"):
        assert tokenizer.encode(case["text"], parse_special=case["is_chat"]) == case["prompt_ids"], case["text"]
    text = (GOLDEN / "smollm2" / "text.txt").read_text(encoding="utf-8")
    assert tokenizer.encode(text) == load_file(GOLDEN / "smollm2" / "text.safetensors")["ids"].tolist()


@pytest.mark.real_model
@pytest.mark.slow
def test_smollm2_float32_greedy_replies_equal_transformers(smollm2_f32: Runner) -> None:
    cases = read_json(GOLDEN / "smollm2" / "greedy.json")
    replies = smollm2_f32.greedy([case["prompt_ids"] for case in cases], len(cases[0]["greedy_ids"]))
    for case, reply in zip(cases, replies, strict=True):
        assert reply == case["greedy_ids"], f"{case['text']!r} (least gap {case['least_gap']})"


@pytest.mark.real_model
@pytest.mark.slow
def test_smollm2_float32_logits_equal_transformers(smollm2_f32: Runner) -> None:
    cases = read_json(GOLDEN / "smollm2" / "greedy.json")
    golden = load_file(GOLDEN / "smollm2" / "logits.safetensors")
    numbers = [int(key.removeprefix("logits_")) for key in golden if key.startswith("logits_")]
    assert len(numbers) == 5
    for number in numbers:
        rows = smollm2_f32.prefill(0, cases[number]["prompt_ids"])[golden[f"positions_{number}"]]
        assert np.abs(rows[:, golden["ids"]] - golden[f"logits_{number}"]).max() <= 1e-3
        assert np.abs(logsumexp(rows) - golden[f"logsumexp_{number}"]).max() <= 1e-3


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.003), ("int8", 0.006)])
def test_smollm2_text_scores_stay_near_float32(smollm2_path: Path, dtype: Any, most: float) -> None:
    """The default dtypes on a text of 1,900 tokens: mean NLL near float32's, the same argmax for 95 % of tokens."""
    golden = load_file(GOLDEN / "smollm2" / "text.safetensors")
    nll, argmax = text_scores(load_model(smollm2_path, dtype), golden["ids"].tolist(), int(golden["window"]))
    assert abs(nll.mean(dtype=np.float64) - golden["nll"].mean(dtype=np.float64)) <= most
    assert (argmax == golden["argmax"]).mean() >= 0.95


def text_scores(model: Model, ids: list[int], window: int) -> tuple[np.ndarray, np.ndarray]:
    """For each window of the text, from an empty context: nll of its tokens but the first, and the argmax before."""
    runner = Runner(model, lanes=1, columns=256, context=1024)
    nll, argmax = [], []
    for start in range(0, len(ids), window):
        piece = ids[start : start + window]
        rows = runner.prefill(0, piece)[:-1]
        nll.append(logsumexp(rows) - rows[np.arange(len(piece) - 1), piece[1:]])
        argmax.append(rows.argmax(-1))
    return np.concatenate(nll), np.concatenate(argmax)


def logsumexp(rows: np.ndarray) -> np.ndarray:
    top = rows.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(rows - top).sum(-1)) + top[:, 0])


needs_gemma = pytest.mark.skipif(
    "JAXFOLD_TEST_GEMMA3_GGUF" not in os.environ,
    reason="Gemma's weights are under the Gemma Terms of Use and are not fetched here: accept the terms, download a "
    "Gemma 3 GGUF file yourself and name it in JAXFOLD_TEST_GEMMA3_GGUF",
)


@pytest.fixture(scope="module")
def gemma() -> tuple[Model, Any]:
    path = Path(os.environ["JAXFOLD_TEST_GEMMA3_GGUF"])
    return load_model(path, "bfloat16"), load_vocabulary(path)


@needs_gemma
def test_real_gemma3_tokenizer_gives_back_the_text(gemma: tuple[Model, Any]) -> None:
    text = (GOLDEN / "smollm2" / "text.txt").read_text(encoding="utf-8") + "  é 日本語 🙂\n\n\tend"
    assert gemma[1].decode(gemma[1].encode(text)) == text


@needs_gemma
def test_real_gemma3_knows_the_capital_of_france(gemma: tuple[Model, Any]) -> None:
    model, tokenizer = gemma
    prompt = tokenizer.encode("The capital of France is", add_special=True)
    assert prompt[0] == tokenizer.bos_id
    reply = Runner(model, lanes=1, columns=16).greedy([prompt], 12)[0]
    assert "Paris" in tokenizer.decode(reply)


@needs_gemma
def test_real_gemma3_finds_prose_likelier_than_the_same_words_shuffled(gemma: tuple[Model, Any]) -> None:
    model, tokenizer = gemma
    text = (GOLDEN / "smollm2" / "text.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text, add_special=True)[:512]
    shuffled = [ids[0], *np.random.default_rng(0).permutation(ids[1:]).tolist()]
    plain = text_scores(model, ids, 512)[0].mean()
    assert 0.5 < plain < 4.0
    assert text_scores(model, shuffled, 512)[0].mean() > plain + 2.0
