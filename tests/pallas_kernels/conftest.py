"""Every test of an operation runs for each of its forms."""

import shutil

import pytest

from pallas_kernels.forms import kernels

COMPILED = all(": ffi (" in line for line in kernels())
HAS_COMPILER = any(map(shutil.which, ("g++", "clang++", "c++")))


@pytest.fixture(params=["xla", "ffi"])
def form(request: pytest.FixtureRequest) -> str:
    """A form's name; the compiled one is there wherever a compiler is."""
    if request.param == "ffi" and not COMPILED:
        assert not HAS_COMPILER, f"the kernels are not compiled (python -m pallas_kernels.build): {kernels()}"
        pytest.skip("there is no C++ compiler on this machine")
    return str(request.param)
