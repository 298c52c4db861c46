"""The compiled CPU kernels: one library, loaded once, its custom calls registered with JAX."""

import ctypes
import functools
import logging

import jax

from pallas_kernels.build import intact
from pallas_kernels.build import library_path

LOG = logging.getLogger(__name__)


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The library of these sources, or None where it was not built or cannot be loaded."""
    path = library_path()
    if not path.is_file():
        return None
    if not intact(path):
        LOG.warning("the compiled kernels are damaged (python -m pallas_kernels.build makes them anew); plain XLA runs")
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        LOG.warning("the compiled kernels cannot be loaded (%s); plain XLA runs", error)
        return None


def instruction_set(symbol: str) -> str | None:
    """What the library's function `symbol` names: the instruction set a kernel uses here, None for none."""
    found = library()
    if found is None:
        return None
    function = getattr(found, symbol, None)
    if function is None:
        LOG.warning("the compiled kernels are not ours (no %s); plain XLA runs", symbol)
        return None
    function.restype = ctypes.c_char_p
    name: bytes | None = function()
    return None if name is None else name.decode()


@functools.lru_cache(maxsize=8)
def register(target: str) -> None:
    """Make the library's handler `target` known to XLA on the CPU, under its own name."""
    found = library()
    if found is None:
        raise RuntimeError("the compiled kernels are not here")
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(found, target)), platform="cpu")
