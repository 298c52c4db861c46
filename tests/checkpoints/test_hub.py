"""Hub models: which files are taken, and the real hub client against a small hub on this machine."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer

import pytest

from jaxfold.checkpoints import CheckpointError
from jaxfold.checkpoints import catalogue
from jaxfold.checkpoints.hub import choose_files

QUANTS = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-m-f16.gguf", "README.md", "config.json"]
PARTS = [f"big/m-F16-0000{number}-of-00002.gguf" for number in (1, 2)]
WHOLE = ["config.json", "model.safetensors", "tokenizer.json", "README.md", "onnx/model.onnx", "pytorch_model.bin"]
SHARDED = [
    *[
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.model",
        "original.safetensors",
    ],
    *["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.00.pth"],
]
COMMIT = "c" * 40


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (QUANTS, "Q4_K_M", ["m-Q4_K_M.gguf"]),
        (QUANTS, "q8_0", ["m-Q8_0.gguf"]),
        (QUANTS, "m-Q4_K_S.gguf", ["m-Q4_K_S.gguf"]),
        (QUANTS + PARTS, "F16", PARTS),
        (QUANTS + PARTS, "m-F16-00001-of-00002.gguf", PARTS),
        (PARTS, None, PARTS),
        (WHOLE, None, ["config.json", "model.safetensors", "tokenizer.json"]),
        (SHARDED, None, sorted(set(SHARDED) - {"original.safetensors", "consolidated.00.pth"})),
    ],
)
def test_chosen_files(names, wanted, chosen):
    assert choose_files("org/name", names, wanted) == chosen


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (QUANTS, None, "should hold one model; name one as org/name:FILE.gguf"),
        (QUANTS, "Q4_K", "has no models that fit 'Q4_K'"),
        (QUANTS, "Q2_K", "m-Q4_K_M.gguf, m-Q4_K_S.gguf, m-Q8_0.gguf"),
        ([*QUANTS, "n-Q8_0.gguf"], "Q8_0", "has 2 models that fit 'Q8_0'"),
        (["README.md"], None, "found no .gguf and no config.json"),
        (["pytorch_model.bin", "config.json"], None, "found no .gguf and no config.json"),
    ],
)
def test_what_cannot_be_chosen_is_refused(names, wanted, words):
    with pytest.raises(CheckpointError) as caught:
        choose_files("org/name", names, wanted)
    assert words in str(caught.value)


class Hub(BaseHTTPRequestHandler):
    """Enough of the hub's protocol for one repository, org/name."""

    files: dict[str, bytes]
    downloads: list[str]

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": name, "size": len(raw)} for name, raw in self.files.items()]
            tree = [{"type": "file", "path": n, "size": len(raw), "oid": "0" * 40} for n, raw in self.files.items()]
            info = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
            self.send(200, json.dumps(tree if "/tree/" in path else info).encode(), body=body)
            return
        name = path.partition("/resolve/")[2].partition("/")[2]
        raw = self.files.get(name) if path.startswith("/org/name/") else None
        if raw is None:
            code = "EntryNotFound" if path.startswith("/org/name/") else "RepoNotFound"
            self.send(404, b"{}", {"X-Error-Code": code}, body=body)
            return
        if body:
            self.downloads.append(name)
        headers = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self.send(200, raw, headers, body=body)

    def send(self, status, raw, headers=None, *, body):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(raw))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(raw)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub client, pointed at a server on this machine and at a cache of its own."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Hub.files, Hub.downloads = {}, []
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_gguf_file_is_downloaded(hub):
    Hub.files = {"m-Q8_0.gguf": b"GGUF8", "m-Q4_K_M.gguf": b"GGUF4", "README.md": b"x"}
    lines: list[str] = []
    path = catalogue.resolve("org/name:Q8_0", progress=lines.append)
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == b"GGUF8"
    assert Hub.downloads == ["m-Q8_0.gguf"]
    assert "downloading 1 files (0.0 MB)" in lines[0]


def test_a_directory_is_downloaded(hub):
    Hub.files = {name: name.encode() for name in WHOLE} | {"config.json": b'{"model_type": "llama"}'}
    path = catalogue.resolve("org/name", model_types=["llama", "qwen3"])
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert "pytorch_model.bin" not in Hub.downloads


def test_an_unknown_layout_is_refused_before_its_weights(hub):
    Hub.files = {name: name.encode() for name in WHOLE} | {"config.json": b'{"model_type": "mamba"}'}
    with pytest.raises(CheckpointError, match=r"org/name: is a 'mamba' model; the families that can be run are llama"):
        catalogue.resolve("org/name", model_types=["llama"])
    assert Hub.downloads == ["config.json"]


def test_a_multimodal_wrapper_counts_as_its_text_model(hub):
    config = b'{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}'
    Hub.files = {"config.json": config, "model.safetensors": b"x"}
    assert catalogue.resolve("org/name", model_types=["gemma3_text"]).is_dir()


def test_a_missing_repository_is_one_sentence(hub):
    with pytest.raises(CheckpointError) as caught:
        catalogue.resolve("org/other")
    assert str(caught.value).startswith("org/other: is no existing path and no public repository")
    assert "\n" not in str(caught.value)


def test_without_the_hub_the_cache_serves_and_else_one_sentence(hub):
    Hub.files = {"m-Q8_0.gguf": b"GGUF8"}
    path = catalogue.resolve("org/name:Q8_0")
    hub.shutdown()
    hub.server_close()
    lines: list[str] = []
    assert catalogue.resolve("org/name:Q8_0", progress=lines.append) == path
    assert "using the copy in its cache" in lines[-1]
    with pytest.raises(CheckpointError) as caught:
        catalogue.resolve("org/name:Q4_K_M")
    assert str(caught.value).startswith(
        "org/name:Q4_K_M: is no existing path, and the Hugging Face hub cannot be reached"
    )
    assert "\n" not in str(caught.value)
