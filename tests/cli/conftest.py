"""The command line with a scripted engine in place of the real loader."""

import logging
import sys
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace
from typing import Any

import pytest

from jaxfold.cli import main
from jaxfold.runtime.options import EngineOptions
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine


@dataclass
class Loader:
    """Stands where `jaxfold.runtime.loader` is: records the options and gives a scripted engine."""

    reply: str = "hello"
    error: Exception | None = None
    fail_after: int | None = None
    delay_s: float = 0.0
    verdict: Any = None
    generation_config: dict[str, Any] = field(default_factory=dict)
    options: list[EngineOptions] = field(default_factory=list)
    engines: list[ScriptedEngine] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def load_engine(
        self,
        options: EngineOptions,
        progress: Callable[[str], None],
        accept: Callable[..., None],
        hosts: object | None = None,
    ) -> SimpleNamespace:
        assert hosts is None
        progress("reading weights")
        self.options.append(options)
        self.before()
        if self.error is not None:
            raise self.error
        checkpoint = SimpleNamespace(
            tokenizer_files=SimpleNamespace(config={"bos_token": "<s>"}),
            chat_template=None,
            generation_config=self.generation_config,
            path=Path(options.model),
            format="gguf",
            config={"max_position_embeddings": 1024},
            tensors={"weight": SimpleNamespace(stored="Q4_1", shape=(2, 3))},
        )
        accept(checkpoint, ByteTokenizer())
        engine = ScriptedEngine(self.reply.encode(), delay_s=self.delay_s)
        engine.fail_after = self.fail_after
        self.engines.append(engine)
        return SimpleNamespace(
            engine=engine,
            tokenizer=ByteTokenizer(),
            chat_template=None,
            generation_config=self.generation_config,
            name="scripted",
            verdict=self.verdict,
            checkpoint=checkpoint,
        )


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    fake = Loader()
    module = ModuleType("jaxfold.runtime.loader")
    module.load_engine = fake.load_engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxfold.runtime.loader", module)
    yield fake
    for engine in fake.engines:
        engine.close()


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file that exists; the scripted loader does not read it."""
    path = tmp_path / "Tiny-1B.Q4_1.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from the machine that runs the tests, and caches in a folder of the test."""
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command sets up logging for its process; here the process goes on."""
    root = logging.getLogger()
    names = ("jaxfold", "jaxfold.access", "jaxfold.api")
    handlers, level, levels = root.handlers[:], root.level, [logging.getLogger(name).level for name in names]
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, one in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(one)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command line in this process."""

    def call(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
