"""Models from the Hugging Face hub: which files of a repository are needed, and their download."""

import glob
import re
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from pathlib import Path

from jaxfold.checkpoints.base import CheckpointError
from jaxfold.checkpoints.files import read_json
from jaxfold.checkpoints.sentence import SENTENCE_FILES
from jaxfold.checkpoints.side_files import CONFIG
from jaxfold.checkpoints.side_files import SIDE_FILES

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_INDEX = "model.safetensors.index.json"


def download(name: str, progress: Callable[[str], None], model_types: Collection[str] | None = None) -> Path:
    """The local path of a hub model, in huggingface_hub's own cache, with its progress bars.

    Args:
        name: `org/name`, `org/name:FILE.gguf` or `org/name:QUANTISATION`.
        progress: called with one line of text a step.
        model_types: refuse a repository whose config.json names another `model_type`; None accepts all.

    Raises:
        CheckpointError: no such repository or file, no access, no network, or a layout that is not known.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.errors import RepositoryNotFoundError

    repository, _, wanted = name.partition(":")
    try:
        return _download(repository, wanted or None, progress, model_types)
    except CheckpointError:
        raise
    except Exception as error:  # the hub client raises its HTTP library's errors beside its own
        reachable = isinstance(error, RepositoryNotFoundError | HFValidationError)
        found = None if reachable else _from_cache(repository, wanted or None)
        if found is not None:
            progress(f"{name}: the hub cannot be reached; using the copy in its cache")
            return found
        raise CheckpointError(name, _reason(error)) from None


def _download(
    repository: str, wanted: str | None, progress: Callable[[str], None], model_types: Collection[str] | None
) -> Path:
    import huggingface_hub

    info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    names = choose_files(repository, list(sizes), wanted)
    if model_types is not None and CONFIG in names:
        config = Path(huggingface_hub.hf_hub_download(repository, CONFIG, revision=info.sha))
        _check_model_type(repository, config, model_types)
    total = sum(sizes[name] for name in names)
    progress(f"{repository}: downloading {len(names)} files ({total / 1e6:.1f} MB) from the Hugging Face hub")
    patterns = [glob.escape(name) for name in names]
    snapshot = huggingface_hub.snapshot_download(repository, allow_patterns=patterns)
    return _entry_point(Path(snapshot), names)


def choose_files(repository: str, names: Sequence[str], wanted: str | None) -> list[str]:
    """The files to download, sorted: one GGUF model (all its parts), or a Hugging Face directory's own files.

    Args:
        repository: for the error's text.
        names: every file in the repository.
        wanted: a GGUF file's name, a quantisation's name such as "Q4_K_M", or None for what the repository is.

    Raises:
        CheckpointError: nothing fits, or more than one model does.
    """
    weights = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    if wanted is None and weights and CONFIG in names:
        if _INDEX in names:
            weights = [name for name in weights if re.match(r"model-\d+-of-\d+\.", name)]
        elif "model.safetensors" in weights:
            weights = ["model.safetensors"]
        return sorted({*weights, *({*SIDE_FILES, *SENTENCE_FILES, _INDEX} & set(names))})
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(".gguf") and not name.rpartition("/")[2].startswith("mmproj"):
            models.setdefault(_PART.sub("", name), []).append(name)
    fitting = [parts for model, parts in models.items() if wanted is None or _fits(model, parts, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(models) or "no .gguf and no config.json with .safetensors"
    asked = "should hold one model" if wanted is None else f"has {len(fitting) or 'no'} models that fit {wanted!r}"
    raise CheckpointError(repository, f"{asked}; name one as {repository}:FILE.gguf (found {found:.600})")


def _fits(model: str, parts: Sequence[str], wanted: str) -> bool:
    if wanted.endswith(".gguf"):
        return any(wanted in (part, part.rpartition("/")[2]) for part in parts)
    # A whole word of the file's name, so that Q4_K does not find Q4_K_M.
    return re.search(rf"(?<![^-._/]){re.escape(wanted)}(?![^-./])", model, re.IGNORECASE) is not None


def _check_model_type(repository: str, path: Path, model_types: Collection[str]) -> None:
    config = read_json(path)
    text = config.get("text_config")
    found = [part.get("model_type") for part in (config, text) if isinstance(part, dict)]
    if not any(kind in model_types for kind in found):
        known = ", ".join(sorted(model_types))
        raise CheckpointError(repository, f"is a {found[0]!r} model; the families that can be run are {known}")


def _entry_point(snapshot: Path, names: Sequence[str]) -> Path:
    """The path to open: the first GGUF file, or the directory."""
    return snapshot / names[0] if names[0].endswith(".gguf") else snapshot


def _from_cache(repository: str, wanted: str | None) -> Path | None:
    """What an earlier download left, where all of it is there."""
    import huggingface_hub

    try:
        kept = [repo for repo in huggingface_hub.scan_cache_dir().repos if repo.repo_id == repository]
        revisions = [revision for repo in kept for revision in repo.revisions if "main" in revision.refs]
        snapshot = revisions[0].snapshot_path
        here = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
        return _entry_point(snapshot, choose_files(repository, here, wanted))
    except (CheckpointError, huggingface_hub.CacheNotFound, IndexError, OSError):
        return None  # the first error is the one to report


def _reason(error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "is gated: accept its terms on the hub and log in with 'hf auth login'"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "is no existing path and no public repository on the Hugging Face hub (or it needs 'hf auth login')"
    if isinstance(error, errors.HFValidationError):
        return "is no existing path and no valid Hugging Face id"
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"is no existing path, and the Hugging Face hub cannot be reached ({text[:200]}); give a local path instead"
