"""The table of programs, and the cache that a second start loads them from."""

import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.compilation_cache import compilation_cache

import jaxfold.runtime.programs as programs_module
from jaxfold.runtime.device import Device
from jaxfold.runtime.program_store import without_jax_cache
from jaxfold.runtime.programs import CompileCounter
from jaxfold.runtime.programs import Programs
from jaxfold.runtime.programs import program_key
from jaxfold.runtime.table import CHUNKS
from jaxfold.runtime.table import SHARED_CHUNKS
from jaxfold.runtime.table import StepShape
from jaxfold.runtime.table import make_table
from tests.tiny_engines import Client
from tests.tiny_engines import tiny_engine

LANES = st.integers(1, 64)
DRAFTS = st.integers(0, 31)


@given(lanes=LANES, drafts=DRAFTS)
def test_a_table_has_at_most_twelve_programs(lanes: int, drafts: int) -> None:
    table = make_table(lanes, {"full": 8}, drafts)
    assert table.count <= 12
    assert len({str(shape) for shape in table.steps}) == len(table.steps)
    assert len(table.steps) + len(table.draws) + 1 == table.count
    assert table.decode[0] == 1 and table.decode[-1] == lanes
    for shape in table.steps:
        grids = [(shape.decode, shape.columns), (1, shape.chunk)]
        assert [(part.lanes, part.columns) for part in shape.parts] == [(n, c) for n, c in grids if n and c]
    assert bool(table.shared_chunks) == (lanes > 1)


@given(lanes=LANES, drafts=DRAFTS)
def test_every_step_has_draws_for_its_rows(lanes: int, drafts: int) -> None:
    table = make_table(lanes, {"full": 8}, drafts)
    assert table.draw_rows(StepShape(1, 0)) == table.draw_rows(StepShape(0, 256)) == 1
    for shape in table.steps:
        rows, groups = table.draw_rows(shape), table.groups(shape)
        assert rows in table.draws
        # Each call holds whole windows, and together they hold all of them.
        assert groups * (rows // shape.columns) >= max(shape.decode, 1)
        assert shape.columns > 1 or groups == 1


@given(lanes=LANES, drafts=DRAFTS)
def test_windows_hold_the_drafts_of_one_lane_and_some_of_several(lanes: int, drafts: int) -> None:
    table = make_table(lanes, {"full": 8}, drafts)
    if not drafts:
        assert table.windows == ()
        return
    alone, *crowd = table.windows
    assert (alone.decode, alone.columns) == (1, drafts + 1)
    assert len(crowd) == (lanes > 1)
    for shape in crowd:
        assert min(lanes, 4) <= shape.decode <= lanes and 2 <= shape.columns <= alone.columns


@given(lanes=LANES, wanted=st.integers(1, 64))
def test_the_narrowest_decode_grid_is_picked(lanes: int, wanted: int) -> None:
    table = make_table(lanes, {"full": 8}, 7)
    if wanted > lanes:
        with pytest.raises(StopIteration):
            table.decode_width(wanted)
        return
    width = table.decode_width(wanted)
    assert width in table.decode and width >= wanted
    assert not [n for n in table.decode if wanted <= n < width]


@given(lanes=st.integers(2, 64), tokens=st.integers(1, 5000), shared=st.booleans())
def test_the_narrowest_chunk_is_picked(lanes: int, tokens: int, shared: bool) -> None:
    table = make_table(lanes, {"full": 8}, 7)
    shape = table.chunk_shape(tokens, shared)
    assert shape in table.steps and shape.decode in ((lanes,) if shared else (0, lanes))
    width, widths = shape.chunk, SHARED_CHUNKS if shared else CHUNKS
    assert width in widths
    assert width == widths[-1] or width >= tokens
    assert not [n for n in widths if tokens <= n < width]


@pytest.fixture(scope="module")
def client(programs_dir: Path) -> Iterator[Client]:
    engine = tiny_engine("llama", programs_dir)
    yield Client(engine)
    engine.close()


@pytest.fixture
def device(client: Client) -> Device:
    """Of an engine at rest; only shapes are read from it."""
    return client.engine.core.device


def warm_up(device: Device, cache_dir: Path | None) -> tuple[Programs, int]:
    programs = Programs(device.cfg, device.programs.table, cache_dir)
    return programs, programs.warm_up(device.weights, device.cache, device.state)


@pytest.fixture
def stored(device: Device, programs_dir: Path, tmp_path: Path) -> Path:
    """A copy of this engine's programs, with nothing else beside them."""
    used: list[str] = []

    class Noting(Programs):
        def _obtain(self, name: str, facts: str, lower: object) -> tuple[object, bool]:
            used.append(f"{program_key(name, facts)}.xla")
            return (lambda *_: None), False

    Noting(device.cfg, device.programs.table, programs_dir).warm_up(device.weights, device.cache, device.state)
    assert len(set(used)) == device.programs.table.count
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    for name in used:
        shutil.copy(programs_dir / name, folder / name)
    return folder


def test_a_second_start_compiles_nothing(device: Device, stored: Path) -> None:
    counter = CompileCounter()
    told: list[str] = []
    programs = Programs(device.cfg, device.programs.table, stored)
    assert programs.warm_up(device.weights, device.cache, device.state, told.append) == 0
    assert counter.since_ready == 0
    count = device.programs.table.count
    assert told == [f"loading {count} compiled programs"]


def test_compiling_tells_how_far_it_is(device: Device) -> None:
    class Instant(Programs):
        def _obtain(self, name: str, facts: str, lower: object) -> tuple[object, bool]:
            return (lambda *_: None), True

    told: list[str] = []
    count = device.programs.table.count
    programs = Instant(device.cfg, device.programs.table, None)
    assert programs.warm_up(device.weights, device.cache, device.state, told.append) == count
    first, *others = told
    assert first.startswith(f"compiling {count} programs")
    assert others == [f"compiling, {done} of {count} done" for done in range(1, count)]


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [_cut, _flip, lambda _: b"", lambda _: pickle.dumps("not a program")])
def test_a_damaged_program_is_compiled_again(
    damage: object, device: Device, stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The smallest is the slot reset, which compiles fastest.
    file = min(stored.iterdir(), key=lambda path: path.stat().st_size)
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert warm_up(device, stored)[1] == 1
    assert [file.name in record.getMessage() for record in caplog.records] == [True]
    assert warm_up(device, stored)[1] == 0
    assert sorted(path.suffix for path in stored.iterdir()) == [".xla"] * device.programs.table.count


def test_the_cache_is_the_users_own(tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture) -> None:
    """Its files are code: a folder that others can write to is neither read nor written."""

    def kept(path: Path) -> Path | None:
        return Programs(device.cfg, device.programs.table, path).cache_dir

    fresh = tmp_path / "a" / "programs"
    assert kept(fresh) == fresh and fresh.stat().st_mode & 0o777 == 0o700
    assert not caplog.records
    for mode in (0o770, 0o702):
        os.chmod(fresh, mode)
        assert kept(fresh) is None
        assert "other users can write" in caplog.records[-1].getMessage()
    os.chmod(fresh, 0o755)
    assert kept(fresh) == fresh
    (tmp_path / "file").touch()
    assert kept(tmp_path / "file") is None and "are not kept" in caplog.records[-1].getMessage()


def test_a_key_depends_on_everything_that_code_depends_on(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    base = program_key("decode 1", "facts")
    assert program_key("decode 1", "facts") == base and len(base) == 64
    keys = {base, program_key("decode 2", "facts"), program_key("decode 1", "other")}
    for name in ("source_hash", "cpu_flags"):
        with monkeypatch.context() as patch:
            patch.setattr(programs_module, name, lambda: "changed")
            keys.add(program_key("decode 1", "facts"))
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        keys.add(program_key("decode 1", "facts"))
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.0")
        keys.add(program_key("decode 1", "facts"))
    assert len(keys) == 7
    cfg = device.cfg
    others = [replace(cfg, norm_eps=cfg.norm_eps * 2), replace(cfg, compute_dtype="float32"), replace(cfg, window=7)]
    assert len({program_key("decode 1", repr(one)) for one in [cfg, *others]}) == 4


def test_the_source_hash_covers_models_draws_and_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = programs_module.source_hash.__wrapped__
    base = plain()
    for package in ("models", "runtime.sampling"):
        source = tmp_path / package
        source.mkdir()
        (source / "new.py").write_text("x = 1\n")
        module = {
            "models": programs_module.jaxfold.models,
            "runtime.sampling": programs_module.jaxfold.runtime.sampling,
        }
        with monkeypatch.context() as patch:
            patch.setattr(module[package], "__path__", [*module[package].__path__, str(source)])
            added = plain()
            (source / "new.py").write_text("x = 2\n")
            assert len({base, added, plain()}) == 3
    assert plain() == base


def test_compiling_goes_past_the_cache_of_jax(tmp_path: Path) -> None:
    """What JAX's own cache gives back cannot be stored again on the CPU; after the start it is on as before."""
    before = (jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        with without_jax_cache():
            jax.jit(lambda x: x * 3 + 1).lower(jnp.ones(7)).compile()
            assert not list(tmp_path.iterdir())
        assert jax.config.jax_enable_compilation_cache
        jax.jit(lambda x: x * 5 - 1).lower(jnp.ones(7)).compile()
        assert list(tmp_path.iterdir())
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
        compilation_cache.reset_cache()
