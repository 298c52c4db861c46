"""Uploads: what is taken, how it is described and served, and every way to misuse it."""

import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.uploads import pdf as uploads_pdf
from jaxfold.api.uploads.kinds import CLAIMS
from jaxfold.api.uploads.kinds import CONTENT_TYPES
from jaxfold.api.uploads.store import MEGABYTE
from jaxfold.api.uploads.store import Uploads
from jaxfold.api.uploads.store import UploadSettings
from tests.api.harness import Answer
from tests.api.harness import Server
from tests.api.harness import running
from tests.api.test_ollama import refused
from tests.scripted_engine import ScriptedEngine

BOUNDARY = "----b"
KIND = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with running(ScriptedEngine(), uploads=UploadSettings(folder=folder, max_bytes=4 * MEGABYTE)) as server:
        yield server


def form(name: str, data: bytes, before: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return before.encode() + head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def send(server: Server, name: str, data: bytes) -> Answer:
    return server.post("/api/upload", form(name, data), KIND)


def kept(server: Server, name: str, data: bytes) -> dict[str, Any]:
    answer = send(server, name, data)
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.json
    assert body["ok"] is True and body["url"] == f"/uploads/{body['file']}"
    return body


def png(width: int, height: int) -> bytes:
    """A PNG whose head claims a size; the pixels are those of one row at most."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" + b"\0" * min(width, 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def pdf(*pages: str) -> bytes:
    """A PDF with one line of text a page; an empty line makes a page without a text layer."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode() if text else b""
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        content = len(objects)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % content
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    return out + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)


def test_text(server: Server, folder: Path) -> None:
    body = kept(server, "notes.md", "# Grüße\n".encode())
    assert body["mediaType"] == "text" and body["fileName"] == "notes.md"
    assert body["textContent"] == "# Grüße\n" and body["fileBacked"] is False
    assert (body["truncated"], body["truncateLimit"], body["truncateUnit"]) == (False, None, None)
    assert (body["originalTokenCount"], body["returnedTokenCount"]) == (None, None)
    assert body["modelContextLimit"] == server.engine.context_length
    assert [path.name for path in folder.iterdir()] == [body["file"]]
    served = server.get(body["url"])
    assert served.body == "# Grüße\n".encode()
    assert served.headers["content-type"] == "text/plain; charset=utf-8"
    assert served.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in served.headers["content-security-policy"]
    assert server.request("HEAD", body["url"]).status == 200


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("\ufeffa".encode(), "a"),
        ("ä€".encode("utf-16"), "ä€"),
        (b"caf\xe9", "café"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    ],
)
def test_encodings_of_text(server: Server, data: bytes, text: str) -> None:
    body = kept(server, "page.html", data)
    assert body["textContent"] == text
    assert server.get(body["url"]).headers["content-type"] == "text/plain; charset=utf-8"


def test_csv_is_kept_by_the_server(server: Server) -> None:
    body = kept(server, "table.csv", b"a,b\n1,2\n")
    assert body["fileBacked"] is True and "textContent" not in body


HEADS = {
    "png": png(2, 1),
    "gif": b"GIF89a" + struct.pack("<HH", 2, 1) + b"\0" * 10,
    "bmp": b"BM" + b"\0" * 16 + struct.pack("<ii", 2, -1) + b"\0" * 20,
    "jpg": b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08" + struct.pack(">HH", 1, 2) + b"\0" * 12,
    "webp": b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + b"\x01\0\0\0\0\0",
    "heic": b"\0\0\0\x18ftypheic" + b"\0" * 12,
    "mp4": b"\0\0\0\x18ftypisom" + b"\0" * 12,
    "mov": b"\0\0\0\x18ftypqt  " + b"\0" * 12,
    "avi": b"RIFF\0\0\0\0AVI LIST",
    "mkv": b"\x1aE\xdf\xa3" + b"\0" * 12,
    "webm": b"\x1aE\xdf\xa3" + b"\0" * 12,
    "mp3": b"ID3\x04" + b"\0" * 12,
    "wav": b"RIFF\0\0\0\0WAVEfmt ",
    "ogg": b"OggS" + b"\0" * 12,
    "flac": b"fLaC" + b"\0" * 12,
    "m4a": b"\0\0\0\x18ftypM4A " + b"\0" * 12,
}


@pytest.mark.parametrize("extension", HEADS)
def test_media_are_stored_and_described(server: Server, extension: str) -> None:
    body = kept(server, f"x.{extension.upper()}", HEADS[extension])
    assert body["mediaType"] == CLAIMS[extension]
    assert body["contentType"] == CONTENT_TYPES[extension]
    assert body["file"].endswith(f".{extension}")
    if extension in ("png", "gif", "bmp", "jpg", "webp"):
        assert (body["width"], body["height"]) == (2, 1)
    if body["mediaType"] == "video":
        assert body["frames"] == body["frameUrls"] == []
    served = server.get(body["url"])
    assert served.headers["content-type"] == CONTENT_TYPES[extension] and served.body == HEADS[extension]


def test_the_bytes_tell_the_type_and_not_the_name(server: Server) -> None:
    body = kept(server, "photo.jpeg", png(3, 4))
    assert body["file"].endswith(".png") and body["contentType"] == "image/png"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.png", b"plain text"),
        ("a.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("a.pdf", b"plain text"),
        ("a.mp4", HEADS["png"]),
        ("a.txt", HEADS["png"]),
        ("a.txt", b"PK\x03\x04\0\0\0\0"),
        ("a.csv", b"\0\1\2\3"),
        ("a.txt", pdf("x")),
        ("a.json", b"\xff\xfe\0"),
        ("a.png", HEADS["png"][:20]),
        ("a.txt", b""),
    ],
)
def test_files_that_are_not_what_they_claim(server: Server, folder: Path, name: str, data: bytes) -> None:
    refused(send(server, name, data))
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["a.zip", "a.docx", "a.svg", "a.exe", "a", "png", "a.png ", "a.tar.gz", "a.\u00fc"])
def test_names_that_are_not_taken(server: Server, folder: Path, name: str) -> None:
    answer = send(server, name, png(1, 1))
    if name == "a.png ":
        assert answer.json["fileName"] == "a.png"
        return
    assert "Unsupported file type" in refused(answer)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (50_000, 1), (0, 1), (10_000, 10_000), (1 << 31, 1)])
def test_images_that_claim_to_be_giants(server: Server, folder: Path, width: int, height: int) -> None:
    assert "pixels" in refused(send(server, "a.png", png(width, height)))
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.txt", "..\\..\\boot.txt", "C:\\x\\a.txt", "/etc/a.txt", "a\u202e.txt", "a%00.png.txt"]
)
def test_path_tricks_in_the_name(server: Server, folder: Path, name: str) -> None:
    body = kept(server, name, b"hello")
    assert not set(body["fileName"]) & set("/\\\u202e")
    assert [path.parent for path in folder.iterdir()] == [folder]


@pytest.mark.parametrize(
    "path",
    [
        "/uploads/../conftest.py",
        "/uploads/%2e%2e%2fsecret.txt",
        "/uploads/..%5csecret.txt",
        "/uploads/secret.txt",
        "/uploads/",
        "/uploads",
        "/uploads/" + "0" * 32 + ".txt",
        "/uploads/" + "0" * 32 + ".html%00.png",
        "/uploads//etc/passwd",
    ],
)
def test_path_tricks_in_the_address(server: Server, folder: Path, path: str) -> None:
    (folder / "secret.txt").write_text("secret")
    (folder.parent / "secret.txt").write_text("secret")
    answer = server.get(path)
    assert answer.status == 404 and b"secret" not in answer.body.replace(b"secret.txt", b"")
    assert set(answer.json) == {"error"}


def test_a_link_in_the_folder_is_not_followed(server: Server, folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    name = f"{'a' * 32}.txt"
    (folder / name).symlink_to(folder.parent / "secret.txt")
    assert server.get(f"/uploads/{name}").status == 404


def test_a_stored_name_of_an_unlisted_type_is_not_served(server: Server, folder: Path) -> None:
    name = f"{'a' * 32}.svg"
    (folder / name).write_text("<svg/>")
    assert server.get(f"/uploads/{name}").status == 404


@pytest.mark.parametrize(
    ("kind", "body", "word"),
    [
        ("application/json", b"{}", "Expected multipart"),
        ("multipart/form-data", b"x", "Expected multipart"),
        (KIND["Content-Type"], f"--{BOUNDARY}--\r\n".encode(), "No file uploaded"),
        (KIND["Content-Type"], form("", b"x"), "No file uploaded"),
        (
            KIND["Content-Type"],
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--{BOUNDARY}--\r\n'.encode(),
            "No file uploaded",
        ),
        (KIND["Content-Type"], b"no boundary here", ""),
        (KIND["Content-Type"], f"--{BOUNDARY}\r\n".encode() + b"x" * 3_000_000, ""),
        (KIND["Content-Type"], form("a.txt", b"x", before=f"--{BOUNDARY}\r\nbroken\r\n\r\n\r\n"), ""),
    ],
)
def test_forms_that_are_wrong(server: Server, kind: str, body: bytes, word: str) -> None:
    answer = server.post("/api/upload", body, {"Content-Type": kind})
    assert answer.status in (400, 413)
    assert word in refused(answer, answer.status)


def test_the_first_file_of_a_form_counts(server: Server) -> None:
    field = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n'
    answer = server.post("/api/upload", form("a.txt", b"one", before=field), KIND)
    assert answer.json["textContent"] == "one"


def test_a_large_file_goes_to_disk_and_a_larger_one_is_refused(server: Server, folder: Path) -> None:
    # Larger than the JSON routes take, which the application's own limit would refuse.
    data = b"ID3" + b"\0" * (3 * MEGABYTE)
    assert kept(server, "a.mp3", data)["size"] == len(data)
    before = len(list(folder.iterdir()))
    message = refused(send(server, "a.mp3", b"ID3" + b"\0" * (4 * MEGABYTE)), 413)
    assert "at most 4 MB" in message
    assert len(list(folder.iterdir())) == before


def test_a_file_above_the_limit_of_json_bodies(folder: Path) -> None:
    settings = UploadSettings(folder=folder, max_bytes=4 * MEGABYTE)
    with running(ScriptedEngine(), uploads=settings, max_body_mb=0.5) as server:
        assert kept(server, "a.mp3", b"ID3" + b"\0" * (2 * MEGABYTE))["size"] > 2 * MEGABYTE
        refused(server.post("/api/chat", b"x" * MEGABYTE), 413)
        assert "File is too large" in refused(send(server, "a.mp3", b"ID3" + b"\0" * (8 * MEGABYTE)), 413)


def test_the_quota(folder: Path) -> None:
    settings = UploadSettings(folder=folder, quota_bytes=1000)
    with running(ScriptedEngine(), uploads=settings) as server:
        first = kept(server, "a.txt", b"x" * 600)
        message = refused(send(server, "b.txt", b"x" * 600), 507)
        assert message.startswith("Upload storage quota exceeded") and "1000" not in message
        # What was refused takes nothing from the quota.
        kept(server, "c.txt", b"x" * 400)
        refused(send(server, "d.txt", b"x"), 507)
    with running(ScriptedEngine(), uploads=settings) as server:
        # The count is made again from the folder.
        refused(send(server, "d.txt", b"x"), 507)
        assert server.get(first["url"]).status == 200


def test_files_end_with_their_time(folder: Path) -> None:
    with running(ScriptedEngine(), uploads=UploadSettings(folder=folder, ttl_s=3600)) as server:
        old, new = kept(server, "a.txt", b"old"), kept(server, "b.txt", b"new")
        past = time.time() - 3601
        os.utime(folder / old["file"], (past, past))
        assert server.get(old["url"]).status == 404
        assert server.get(new["url"]).status == 200
        kept(server, "c.txt", b"more")
        assert not (folder / old["file"]).exists()


def test_what_a_stopped_server_left_is_removed(folder: Path) -> None:
    folder.mkdir()
    (folder / f"{'0' * 32}.part").write_bytes(b"x")
    Uploads(UploadSettings(folder=folder))
    assert not list(folder.iterdir())


def test_a_client_that_leaves_leaves_nothing(server: Server, folder: Path) -> None:
    connection = server.connection()
    connection.putrequest("POST", "/api/upload")
    connection.putheader("Content-Type", KIND["Content-Type"])
    connection.putheader("Content-Length", "100000")
    connection.endheaders(form("a.txt", b"x" * 1000)[:900])
    deadline = time.monotonic() + 30
    while not list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    connection.close()
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(folder.iterdir())


def test_pdf_with_text(server: Server) -> None:
    body = kept(server, "report.pdf", pdf("First page", "Second page"))
    assert body["mediaType"] == "pdf" and body["renderedAsImages"] is False
    assert (body["pageCount"], body["extractedPageCount"], body["complete"]) == (2, 2, True)
    assert "First page" in body["textContent"] and "Second page" in body["textContent"]
    assert body["warning"] is None and body["truncated"] is False


def test_a_scanned_pdf_needs_vision(server: Server) -> None:
    body = kept(server, "scan.pdf", pdf(""))
    assert body["needsVision"] is True and body["textContent"] == "" and body["warning"]


def test_some_pages_of_a_pdf(folder: Path) -> None:
    with running(ScriptedEngine(), uploads=UploadSettings(folder=folder, pdf_pages=1)) as server:
        body = kept(server, "report.pdf", pdf("First", "Second"))
        assert (body["pageCount"], body["extractedPageCount"], body["complete"]) == (2, 1, False)
        assert "Second" not in body["textContent"] and "first 1 of 2" in body["warning"]


def test_a_broken_pdf(server: Server, folder: Path) -> None:
    assert "PDF cannot be read" in refused(send(server, "a.pdf", b"%PDF-1.4\nnothing of the kind"))
    assert not list(folder.iterdir())


def bomb() -> bytes:
    """A small PDF whose one stream is 4 GB once it is unpacked."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = b"\x78\xda" + block * 4096 + b"\x03\0" + b"\0" * 4
    body = pdf("x")
    stream = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
    start = body.index(b"4 0 obj\n") + len(b"4 0 obj\n")
    return body[:start] + stream + body[body.index(b"\nendobj", start) :]


def test_a_pdf_that_unpacks_to_gigabytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_pdf, "WALL_SECONDS", 3.0)
    data = bomb()
    assert len(data) < 8 * MEGABYTE
    with running(ScriptedEngine(), uploads=UploadSettings(folder=folder)) as server:
        answer = send(server, "a.pdf", data)
        # PDFium may give up on the stream by itself: the page then has no text.
        assert answer.status == 400 or answer.json["textContent"] == ""
        server.works()


def test_uploads_can_be_off() -> None:
    with running(ScriptedEngine()) as server:
        assert "off" in refused(send(server, "a.txt", b"x"), 501)
        refused(server.get(f"/uploads/{'0' * 32}.txt"), 404)
