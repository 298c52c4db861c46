"""Compiles the CPU kernels: `python -m pallas_kernels.build`. Without them plain XLA runs."""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import jax

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
SOURCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("paged_attention/native/attention.cc", ()),
    ("paged_attention/native/rows_avx2.cc", ("-mavx2", "-mfma")),
    ("packed_attention/native/packed.cc", ()),
    ("quantised_matmul/native/product.cc", ("-mavx2",)),
    ("quantised_matmul/native/tile_avx2.cc", ("-mavx2",)),
    ("quantised_matmul/native/tile_avx512vnni.cc", ("-mavx512f", "-mavx512bw", "-mavx512vnni")),
)
ROOT = Path(__file__).resolve().parent


class BuildError(Exception):
    """The kernels cannot be compiled here. The message is one sentence."""


@functools.lru_cache(maxsize=1)
def library_path() -> Path:
    """Where the library of these sources and this jaxlib lies, built or not."""
    digest = hashlib.sha256(repr((FLAGS, SOURCES, version("jaxlib"))).encode())
    for file in sorted([*ROOT.glob("include/*"), *ROOT.glob("*/native/*")]):
        if file.suffix in (".cc", ".h"):
            digest.update(file.read_bytes())
    return ROOT / "libraries" / f"cpu-{digest.hexdigest()[:16]}.so"


def intact(path: Path) -> bool:
    """Whether the library is the whole file that was built: loading a cut one would end the process with SIGBUS."""
    try:
        noted = _note(path).read_text()
        return hashlib.sha256(path.read_bytes()).hexdigest() == noted
    except (OSError, ValueError):
        return False


def _note(path: Path) -> Path:
    """The file beside a library that holds its SHA-256."""
    return path.with_suffix(".sha256")


def build() -> Path:
    """Compile the library unless it is there, whole; its path.

    Raises:
        BuildError: not an x86-64 machine, no compiler, or the compiler fails.
    """
    target = library_path()
    if intact(target):
        return target
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"there are no CPU kernels for {platform.machine()}")
    compiler = next(
        (found for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name and (found := shutil.which(name))),
        None,
    )
    if compiler is None:
        raise BuildError("no C++ compiler was found (CXX, g++, clang++, c++)")
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
        objects = []
        for name, extra in SOURCES:
            out = Path(folder) / f"{Path(name).stem}.o"
            _run(
                [
                    compiler,
                    *FLAGS,
                    *extra,
                    f"-I{ROOT / 'include'}",
                    "-isystem",
                    jax.ffi.include_dir(),
                    "-c",
                    str(ROOT / name),
                    "-o",
                    str(out),
                ]
            )
            objects.append(str(out))
        library = Path(folder) / target.name
        _run([compiler, "-shared", *objects, "-o", str(library), "-lpthread"])
        note = Path(folder) / "note"
        note.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        library.replace(target)
        note.replace(_note(target))
    for old in target.parent.glob("cpu-*"):
        if old not in (target, _note(target)):
            old.unlink(missing_ok=True)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no reason"]
        )
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0]}")


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(f"CPU kernels not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
