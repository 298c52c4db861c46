"""The files that the house rules look at: everything git knows, and what it would take in."""

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jaxfold", "pallas_kernels")


@dataclass(frozen=True)
class Source:
    """One Python file."""

    name: str  # relative to the repository, with slashes
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def in_package(self) -> bool:
        return self.name.split("/")[0] in PACKAGES


@functools.lru_cache(maxsize=1)
def files() -> tuple[str, ...]:
    """Every tracked or addable file that exists, relative to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    return tuple(sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file()))


@functools.lru_cache(maxsize=1)
def python_sources() -> tuple[Source, ...]:
    names = [name for name in files() if name.endswith(".py")]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    return tuple(Source(name, text, ast.parse(text, filename=name)) for name, text in texts.items())


def text_of(name: str) -> str | None:
    """The file as text; None for a binary one."""
    raw = (ROOT / name).read_bytes()
    try:
        return None if b"\0" in raw else raw.decode()
    except UnicodeDecodeError:
        return None


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute chain, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
