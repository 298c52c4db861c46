"""From parsed flags to engine options, sampling defaults and the served name."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.cli.engine_flags import engine_options
from jaxfold.cli.errors import CliError
from jaxfold.cli.loading import special_texts
from jaxfold.cli.models import served_name
from jaxfold.cli.sampling_flags import default_sampling
from jaxfold.cli.serve import curl_line
from jaxfold.cli.serve import serve
from jaxfold.cli.serve import url_of
from jaxfold.runtime.api import SamplingParams
from jaxfold.runtime.options import EngineOptions
from jaxfold.runtime.options import OptionsError

MODEL = Path("model.gguf")


def flags(*arguments: str) -> dict[str, Any]:
    return dict(serve.make_context("serve", ["m", *arguments]).params)


def test_the_flags_defaults_are_the_options_defaults(tmp_path: Path) -> None:
    options = engine_options(MODEL, flags("--no-disk-cache"))
    assert options == EngineOptions(model=MODEL)


def test_every_engine_flag_arrives(tmp_path: Path) -> None:
    text = (
        "--context 4096 --parallel 3 --weight-dtype f32 --compute-dtype bf16 --kv-dtype f32 --page-size 128 "
        "--memory-fraction 0.5 --max-queue 7 --max-queue-tokens 1000 --decode-share 0 --no-overlap --no-prefix-cache "
        "--seed-salt -5 --no-self-check --no-draft --draft-tokens 3 --tp 2"
    )
    arguments = shlex.split(text)
    options = engine_options(MODEL, flags(*arguments, "--cache-dir", str(tmp_path)))
    assert options == EngineOptions(
        model=MODEL,
        context=4096,
        parallel=3,
        weight_dtype="f32",
        compute_dtype="bf16",
        kv_dtype="f32",
        page_size=128,
        memory_fraction=0.5,
        max_queue=7,
        max_queue_tokens=1000,
        decode_share=0,
        overlap=False,
        prefix_cache=False,
        draft=False,
        draft_tokens=3,
        tp=2,
        compile_cache_dir=tmp_path / "programs",
        weight_cache_dir=tmp_path / "weights",
        seed_salt=-5,
        self_check=False,
    )


def test_caches_lie_beside_the_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path / "elsewhere"))
    assert engine_options(MODEL, flags()).compile_cache_dir == tmp_path / "elsewhere" / "programs"


def test_no_home_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("jaxfold.checkpoints.catalogue.default_models_dir", homeless)
    with pytest.raises(CliError, match="--cache-dir"):
        engine_options(MODEL, flags())
    assert engine_options(MODEL, flags("--no-disk-cache")).weight_cache_dir is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draft_tokens", 0),
        ("draft_tokens", 32),
        ("tp", 0),
        ("context", 0),
        ("parallel", 0),
        ("page_size", 8),
        ("page_size", 48),
        ("memory_fraction", float("nan")),
        ("memory_fraction", 0.0),
        ("decode_share", -0.1),
        ("max_queue", 0),
        ("max_queue_tokens", 0),
        ("weight_dtype", "f64"),
    ],
)
def test_options_out_of_range_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(OptionsError) as caught:
        EngineOptions(model=MODEL, **{field: value})
    assert caught.value.field == field and str(caught.value).startswith(field)


def test_a_refused_option_is_named_as_its_flag() -> None:
    with pytest.raises(CliError, match="--page-size must be"):
        engine_options(MODEL, {"page_size": "48"})


def test_sampling_is_off_where_nothing_sets_it() -> None:
    assert default_sampling({}, flags(), MODEL) == SamplingParams()


def test_sampling_flags_lie_over_the_models_config() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "max_length": 5}
    assert default_sampling(config, flags(), MODEL) == SamplingParams(0.6, 20, 0.9, 0.05, repeat_penalty=1.1)
    mixed = default_sampling(config, flags("--temperature", "0", "--top-k", "0"), MODEL)
    assert mixed == SamplingParams(0.0, 0, 0.9, 0.05, repeat_penalty=1.1)


def test_a_model_that_does_not_sample_is_greedy_unless_told_otherwise() -> None:
    config = {"do_sample": False, "temperature": 0.6}
    assert default_sampling(config, flags(), MODEL).temperature == 0.0
    assert default_sampling(config, flags("--temperature", "0.7"), MODEL).temperature == 0.7


@pytest.mark.parametrize(
    "config",
    [
        {"temperature": "hot"},
        {"temperature": -1},
        {"top_p": 1.5},
        {"top_k": True},
        {"min_p": float("nan")},
        {"top_k": []},
    ],
)
def test_a_broken_generation_config_names_the_file_and_key(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.gguf: generation_config\.json has {next(iter(config))}"):
        default_sampling(config, flags(), MODEL)


def test_served_names(tmp_path: Path) -> None:
    file = tmp_path / "SmolLM2-135M.Q4_1.gguf"
    file.touch()
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    assert served_name(str(file), None) == "SmolLM2-135M.Q4_1"
    assert served_name(str(folder), None) == "Qwen3-0.6B"
    assert served_name(f"{folder}/.", None) == "Qwen3-0.6B"
    assert served_name("smollm2:135m", None) == "smollm2:135m"
    assert served_name("org/model", None) == "org/model"
    assert served_name(str(file), "mine") == "mine"


def test_special_texts_are_read_in_both_spellings() -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "model_max_length": 8, "x": "y"}
    assert special_texts(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_urls() -> None:
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert url_of("::", 80) == "http://[::1]:80"
    assert url_of("localhost", 80) == "http://localhost:80"


def test_the_curl_line_survives_a_shell() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:1", "it's mine"))
    assert words[:2] == ["curl", "http://127.0.0.1:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's mine"
