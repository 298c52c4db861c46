"""jaxfold: one server that runs open chat models as compiled JAX programs, with exact replies."""

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from jaxfold.research import Model as Model
    from jaxfold.research import load as load

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """`jaxfold.load` and `jaxfold.Model`, imported when first used: JAX takes a second to import."""
    if name in ("Model", "load"):
        from jaxfold import research

        return getattr(research, name)
    raise AttributeError(f"module 'jaxfold' has no attribute {name!r}")
