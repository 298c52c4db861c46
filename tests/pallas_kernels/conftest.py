"""Every test of an operation runs for each of its forms."""

import shutil
from collections.abc import Iterator

import jax
import pytest

from pallas_kernels.native import library

HAS_COMPILER = any(map(shutil.which, ("g++", "clang++", "c++")))


@pytest.fixture(params=["xla", "ffi"])
def form(request: pytest.FixtureRequest) -> str:
    """A form's name; the compiled one is there wherever a compiler is."""
    if request.param == "ffi" and library() is None:
        assert not HAS_COMPILER, "the kernels are not compiled (python -m pallas_kernels.build)"
        pytest.skip("there is no C++ compiler on this machine")
    return str(request.param)


@pytest.fixture
def h200() -> Iterator[None]:
    """As if programs were compiled for an H200: enough to lower them, with no GPU on this machine."""
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        yield
