"""xgrammar is imported without torch, and nothing of the placeholders stays."""

import subprocess
import sys

import pytest

from jaxfold.runtime.api import GrammarError
from jaxfold.runtime.constraints import guard

SCRIPT = """
import importlib.util, sys
from jaxfold.runtime.constraints.guard import ABSENT, load_xgrammar
absent = [name for name in ABSENT if importlib.util.find_spec(name) is None]
module = load_xgrammar()
assert module is load_xgrammar() and hasattr(module, "GrammarCompiler")
assert not [name for name in absent if name in sys.modules], "a placeholder stayed"
assert "jax" not in sys.modules
"""


def test_it_is_imported_in_a_process_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_server_without_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(GrammarError, match=r"pip install 'jaxfold\[grammar\]'"):
        guard.load_xgrammar()
