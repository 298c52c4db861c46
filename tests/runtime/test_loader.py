"""From options to an engine: dtypes, names, memory, and refusals before anything is compiled."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.runtime import loader
from jaxfold.runtime.api import CapacityError
from jaxfold.runtime.loader import LoadedModel
from jaxfold.runtime.loader import load_engine
from jaxfold.runtime.memory import RESERVE_BYTES
from jaxfold.runtime.options import EngineOptions
from tests.golden.gguf_writer import write_gguf
from tests.models.golden_support import tiny_folder
from tests.tiny_engines import CONTEXT
from tests.tiny_engines import LANES
from tests.tiny_engines import PAGE
from tests.tiny_engines import Ask
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

MIB = 1 << 20


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, programs_dir: Path) -> EngineOptions:
    """The tiny llama in the shapes of the other engines of the tests, whose programs these are."""
    root = tmp_path_factory.mktemp("loader")
    folder = tiny_folder("llama", root, changes={"max_position_embeddings": CONTEXT})
    return EngineOptions(
        model=folder,
        parallel=LANES,
        page_size=PAGE,
        compile_cache_dir=programs_dir,
        weight_cache_dir=root / "weights",
    )


@pytest.fixture(scope="module")
def loaded(options: EngineOptions) -> Iterator[LoadedModel]:
    model = load_engine(options)
    yield model
    model.engine.close()


def test_a_loaded_model_says_what_it_is(loaded: LoadedModel, options: EngineOptions) -> None:
    info = loaded.engine.info
    assert (info.model_type, info.context_length, info.lanes, info.page_size) == ("llama", CONTEXT, LANES, PAGE)
    assert (info.weight_dtype, info.compute_dtype, info.kv_dtype) == ("bf16", "bf16", "bf16")
    assert info.total_pages == LANES * CONTEXT // PAGE
    cfg = loaded.engine.core.device.cfg
    assert info.cache_bytes == sum(cfg.kv_bytes_per_token(2).values()) * PAGE * (info.total_pages + 1)
    assert info.programs == loaded.engine.core.device.programs.table.count == 12
    assert info.exactness == "A" and loaded.verdict is not None
    assert loaded.name == options.model.name
    assert loaded.chat_template is not None and loaded.tokenizer.vocab_size == info.vocab_size


def test_another_way_in_gives_the_same_replies(loaded: LoadedModel, options: EngineOptions, programs_dir: Path) -> None:
    prompt = tuple(loaded.tokenizer.encode("Once upon a time"))
    wanted = Client(loaded.engine).run(Ask(prompt, 32)).ids
    engines = (tiny_engine("llama", programs_dir), load_engine(options).engine)
    try:
        for engine in engines:
            assert Client(engine).run(Ask(prompt, 32)).ids == wanted
    finally:
        for engine in engines:
            engine.close()


def test_nothing_is_compiled_after_a_mixed_load(loaded: LoadedModel) -> None:
    client = Client(loaded.engine)
    asks = [Ask(tuple(i % 200 + 3 for i in range(length)), 9) for length in (1, 2, 17, 40, 130, 260, 300, 31)]
    client.together(asks)
    for ask in asks[:3]:
        client.run(ask)
    assert loaded.engine.snapshot().compiles_after_ready == 0


def start_with(options: EngineOptions, free: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """The refusal and the loader's steps before it, on a machine with `free` bytes."""
    steps: list[str] = []
    monkeypatch.setattr(loader, "free_bytes", lambda _: free)
    with pytest.raises(CapacityError) as caught:
        load_engine(options, steps.append)
    return str(caught.value), steps


def test_a_context_that_cannot_fit_is_refused_with_the_largest_that_does(
    options: EngineOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = replace(options, compile_cache_dir=None, memory_fraction=1.0)
    monkeypatch.setattr(loader, "tree_bytes", lambda _: MIB)
    # The cache gets what the reserve and the weights leave: 300 tokens and the scratch page.
    cfg_bytes = sum(loader.read_config(loader.open_checkpoint(options.model))[0].kv_bytes_per_token(2).values())
    free = RESERVE_BYTES + MIB + cfg_bytes * (304 + PAGE)
    message, steps = start_with(replace(model, context=320), free, monkeypatch)
    assert "a context of 320 tokens needs" in message and "the largest that fits is 304 tokens" in message
    assert not [step for step in steps if "programs" in step], "it is refused before any program is compiled"
    message, _ = start_with(replace(model, context=320, memory_fraction=0.5), free, monkeypatch)
    assert "the largest that fits is 0 tokens" in message

    started: list[loader.CachePlan] = []

    def start_engine(cfg: object, weights: object, plan: loader.CachePlan, *_: object) -> tuple[None, None]:
        started.append(plan)
        return None, None

    monkeypatch.setattr(loader, "ready_programs", lambda *_: None)
    monkeypatch.setattr(loader, "start_engine", start_engine)
    write_gguf(options.model, tmp_path / "file.gguf", "F32")
    names = [load_engine(one).name for one in (replace(model, context=304), model)]
    assert names == [options.model.name] * 2
    assert load_engine(replace(model, model=tmp_path / "file.gguf", context=16)).name == "file"
    assert [(plan.context, dict(plan.pages)) for plan in started] == [
        (304, {"full": 1 + 304 // PAGE}),
        (304, {"full": 1 + 304 // PAGE}),
        (16, {"full": 1 + LANES}),
    ]


def test_a_context_above_the_models_length_is_refused(options: EngineOptions) -> None:
    with pytest.raises(CapacityError, match=rf"--context {CONTEXT + 1} is more than the {CONTEXT} tokens the model"):
        load_engine(replace(options, context=CONTEXT + 1, compile_cache_dir=None))


def test_a_tokenizer_that_cannot_be_used_names_the_checkpoint(options: EngineOptions, tmp_path: Path) -> None:
    folder = tiny_folder("llama", tmp_path)
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(CheckpointError) as caught:
        load_engine(replace(options, model=folder))
    assert str(caught.value).startswith(f"{folder}") and "\n" not in str(caught.value)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_engine(replace(options, model=folder))


def test_settings_are_refused_before_weights_are_read(options: EngineOptions, tmp_path: Path) -> None:
    steps: list[str] = []
    folder = tiny_folder("llama", tmp_path, changes={"mlp_bias": True})
    with pytest.raises(CheckpointError, match="mlp_bias"):
        load_engine(replace(options, model=folder), steps.append)
    assert steps == ["opening the checkpoint"]


def test_the_two_cache_folders_are_apart(tmp_path: Path) -> None:
    assert loader.default_cache_dirs(tmp_path) == (tmp_path / "programs", tmp_path / "weights")


def test_a_model_over_several_devices_says_so(options: EngineOptions, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        model = load_engine(replace(options, tp=4))
    try:
        info = model.engine.info
        assert info.tp == 4 and info.exactness == "A"
        # Each of the 4 devices has one of the 3 heads, or padding.
        cfg = model.engine.core.device.cfg
        each = sum(cfg.kv_bytes_per_token(2).values()) // cfg.num_kv_heads * PAGE * (info.total_pages + 1)
        assert info.cache_bytes == 4 * each
        wanted = "tensor parallel: 3 key-value heads over 4 devices: padded to 4"
        assert [record.getMessage() for record in caplog.records if "tensor" in record.getMessage()] == [wanted]
        assert len(Client(model.engine).run(Ask((5, 6, 7), 4)).ids) == 4
    finally:
        model.engine.close()
