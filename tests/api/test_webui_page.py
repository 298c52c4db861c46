"""The page's files: what is served, under which policy, and that the vendored libraries are what they claim to be."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.api.webui.page import FOLDER
from jaxfold.api.webui.page import page_files
from tests.api.harness import Server
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine

MAX_LINES = 500
OWN = sorted(path for path in FOLDER.glob("*") if path.is_file())


@pytest.fixture(scope="module")
def page() -> Iterator[Server]:
    with running(ScriptedEngine(), webui=True) as server:
        yield server


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_the_page(page: Server, path: str) -> None:
    answer = page.get(path)
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.body == (FOLDER / "index.html").read_bytes()
    head = page.request("HEAD", path)
    assert head.status == 200 and head.body == b""


def test_every_file_is_served_under_the_policy(page: Server) -> None:
    files = page_files()
    assert {"index.html", "app.js", "style.css", "vendor/marked.js", "vendor/purify.LICENSE"} <= set(files)
    for name, file in files.items():
        answer = page.get(f"/webui/{name}")
        assert answer.status == 200 and answer.body == file.data
        assert answer.headers["content-type"] == file.content_type
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'" and policy["frame-ancestors"] == "'none'"
        assert not any("unsafe" in value or "http" in value or "*" in value for value in policy.values())


def test_a_file_that_is_known_is_not_sent_again(page: Server) -> None:
    tag = page.get("/webui/app.js").headers["etag"]
    answer = page.request("GET", "/webui/app.js", headers={"If-None-Match": tag})
    assert answer.status == 304 and answer.body == b""
    assert page.request("GET", "/webui/app.js", headers={"If-None-Match": '"other"'}).status == 200


@pytest.mark.parametrize(
    "path", ["/webui/../api/app.py", "/webui/%2e%2e/api/app.py", "/webui/", "/webui/nothing.js", "/webui//app.js", "/a"]
)
def test_nothing_else_is_served(page: Server, path: str) -> None:
    answer = page.get(path)
    assert answer.status == 404 and answer.headers["content-type"] == "application/json"


def test_without_the_page_the_root_is_health() -> None:
    with running(ScriptedEngine()) as server:
        assert server.get("/").json["status"] == "ok"
        assert server.get("/index.html").status == server.get("/webui/app.js").status == 404


def test_the_page_needs_no_key_and_the_rest_does() -> None:
    with running(ScriptedEngine(), webui=True, keys=KeyRing(keys_of(["a-key-of-these-tests"], "tests"))) as server:
        for path in ("/", "/index.html", "/webui/app.js"):
            assert server.get(path).status == 200
        for path in ("/api/models", "/api/tags", "/uploads/x"):
            assert server.get(path).status == 401
        for path in ("/api/chat", "/api/upload", "/api/sessions", "/api/pull"):
            assert server.post(path, {}).status == 401


@pytest.mark.parametrize("entry", json.loads((FOLDER / "vendor" / "vendor.json").read_text()), ids=lambda e: e["file"])
def test_vendored_libraries(entry: dict[str, str]) -> None:
    data = (FOLDER / "vendor" / entry["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert entry["licence"] in ("MIT", "BSD-3-Clause", "MPL-2.0 OR Apache-2.0")
    assert re.search(rf"\bv?{re.escape(entry['version'])}\b", data.decode()[:2000])
    assert "icen" in (FOLDER / "vendor" / entry["licence_file"]).read_text()


def test_every_vendored_file_is_listed() -> None:
    entries = json.loads((FOLDER / "vendor" / "vendor.json").read_text())
    listed = {entry["file"] for entry in entries} | {entry["licence_file"] for entry in entries} | {"vendor.json"}
    assert {path.name for path in (FOLDER / "vendor").iterdir()} == listed


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_files(path: Path) -> None:
    """No address of elsewhere, nothing that the policy would stop, no file too long to read."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"\sstyle=|\son[a-z]+=\"|<script>|<style>", text)
