"""One tiny encoder for these tests, in a copy of the engine that can be held still."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxfold.runtime.encoders.loader import EncoderOptions
from jaxfold.runtime.encoders.loader import LoadedEncoder
from jaxfold.runtime.encoders.loader import load_encoder
from tests.models.encoder_support import ENCODERS


@pytest.fixture(scope="package")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedEncoder]:
    cache = tmp_path_factory.mktemp("encoder-programs")
    encoder = load_encoder(EncoderOptions(model=ENCODERS / "bert", compile_cache_dir=cache))
    yield encoder
    encoder.engine.close()


@pytest.fixture(scope="package")
def programs(loaded: LoadedEncoder) -> Path:
    """Where the programs of that encoder are kept."""
    path = loaded.engine.programs.cache_dir
    assert path is not None
    return path
