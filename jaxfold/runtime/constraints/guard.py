"""Importing xgrammar without torch and transformers, which its Python files name and its engine does not need.

Placeholder modules stand in for the ones that are not installed, only while xgrammar is imported.
"""

import importlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jaxfold.runtime.api import GrammarError

ABSENT = ("torch", "transformers")
MISSING = "structured output needs xgrammar on the server: pip install 'jaxfold[grammar]'"
_LOCK = threading.Lock()


class Nothing:
    """What a placeholder module holds under every name: a class that can be called, subclassed and subscripted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> type["Nothing"]:
        return cls


class Placeholder(ModuleType):
    """A module that is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> type[Nothing]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


def load_xgrammar() -> ModuleType:
    """The module xgrammar.

    Raises:
        GrammarError: it is not installed, or cannot be imported.
    """
    with _LOCK:
        known = sys.modules.get("xgrammar")
        if known is not None:
            return known
        try:
            # Before the placeholders: it looks for torch itself, and does without.
            importlib.import_module("tvm_ffi")
            return _guarded()
        except ImportError as error:
            raise GrammarError(MISSING) from error


def _guarded() -> ModuleType:
    placed = [name for name in ABSENT if name not in sys.modules and importlib.util.find_spec(name) is None]
    sys.modules.update({name: Placeholder(name) for name in placed})
    try:
        return importlib.import_module("xgrammar")
    finally:
        for name in placed:
            sys.modules.pop(name, None)
