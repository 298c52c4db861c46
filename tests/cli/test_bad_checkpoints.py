"""Checkpoints that cannot be used, through every command that loads one: one sentence, exit code 2, no traceback."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from tests.cli.conftest import Outcome
from tests.cli.conftest import Run
from tests.golden.gguf_writer import write_gguf
from tests.models.golden_support import tiny_folder
from tests.tiny_engines import TINY

ROOT = Path(__file__).resolve().parents[2]


def with_settings(family: str, **changes: object) -> Callable[[Path], Path]:
    return lambda root: tiny_folder(family, root, changes=changes)


def with_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        folder = tiny_folder("llama", root)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


def gguf_file(damage: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        path = root / "model.gguf"
        write_gguf(TINY / "llama", path, "Q8_0")
        path.write_bytes(damage(path.read_bytes()))
        return path

    return make


def mamba_gguf(root: Path) -> Path:
    path = root / "mamba.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def cut_safetensors(root: Path) -> Path:
    folder = tiny_folder("llama", root)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return folder


LOST = "model.layers.1.mlp.down_proj.weight"
BAD: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "missing tensor": (with_tensors(lambda found: found.pop(LOST)), (LOST, "is missing")),
    "wrong shape": (
        with_tensors(lambda found: found.update({LOST: np.zeros((3, 3), np.float32)})),
        (LOST, "has shape"),
    ),
    "mamba": (with_settings("llama", model_type="mamba"), ("architecture 'mamba' is not supported",)),
    "mamba GGUF": (mamba_gguf, ("mamba.gguf", "mamba")),
    "MLP bias": (with_settings("llama", mlp_bias=True), ("mlp_bias",)),
    "YaRN": (with_settings("llama", rope_scaling={"rope_type": "yarn", "factor": 2.0}), ("yarn",)),
    "sliding window": (with_settings("qwen2", use_sliding_window=True), ("use_sliding_window",)),
    "no GGUF": (gguf_file(lambda raw: b"nonsense" + raw[8:]), ("model.gguf",)),
    "cut GGUF header": (gguf_file(lambda raw: raw[:300]), ("model.gguf",)),
    "cut GGUF values": (gguf_file(lambda raw: raw[:-5000]), ("model.gguf",)),
    "empty GGUF": (gguf_file(lambda _: b""), ("model.gguf",)),
    "cut safetensors": (cut_safetensors, ("model.safetensors",)),
}


def check(outcome: Outcome, model: Path, words: tuple[str, ...]) -> None:
    assert outcome.code == 2 and "Traceback" not in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith(f"jaxfold: {model}"), outcome.err
    for word in words:
        assert word in last


@pytest.mark.parametrize("command", ["run", "doctor", "serve", "convert"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_one_sentence(name: str, command: str, run: Run, tmp_path: Path) -> None:
    make, words = BAD[name]
    model = make(tmp_path)
    rest: dict[str, list[object]] = {
        "run": ["hi"],
        "doctor": [],
        "serve": ["--port", 0],
        "convert": [tmp_path / "copy"],
    }
    check(run(command, model, *rest[command]), model, words)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--context", "2049"], "--context 2049 is more than the 2048 tokens the model was made for"),
        (["--memory-fraction", "1e-9"], "for the weights and the programs alone; the largest that fits is 0 tokens"),
        (["--context", "64", "--memory-fraction", "1e-9"], "a context of 64 tokens needs"),
    ],
)
@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_context_that_cannot_be_is_one_sentence(command: str, flags: list[str], words: str, run: Run) -> None:
    rest = ["hi"] if command == "run" else ["--port", "0"]
    outcome = run(command, TINY / "llama", *rest, *flags)
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("jaxfold: ") and words in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("generation_config.json", '{"temperature": "hot"}', "temperature"),
        ("tokenizer_config.json", '{"chat_template": "{% for m in messages %}"}', "template"),
    ],
)
def test_settings_that_cannot_be_used_are_found_before_anything_is_compiled(
    file: str, content: str, words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_nothing(*_: object) -> None:
        raise AssertionError("compiling began")

    monkeypatch.setattr("jaxfold.runtime.loader.ready_programs", compile_nothing)
    folder = tiny_folder("llama", tmp_path)
    (folder / file).write_text(content)
    outcome = run("run", folder, "hi")
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert words in outcome.err.splitlines()[-1]


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_same_from_a_shell(command: str, tmp_path: Path) -> None:
    model = cut_safetensors(tmp_path)
    code = "import sys; from jaxfold.cli import main; sys.exit(main())"
    arguments = {"run": ["hi"], "serve": ["--port", "0"]}[command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAXFOLD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(model), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    check(Outcome(done.returncode, done.stdout, done.stderr), model, ("model.safetensors",))


@pytest.mark.real_model
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_truncated_download_is_one_sentence(share: float, run: Run, smollm2_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "cut.gguf"
    shutil.copy(smollm2_path, model)
    os.truncate(model, int(model.stat().st_size * share))
    check(run("run", model, "hi"), model, ("cut.gguf",))
