"""The folder of uploaded files: names that cannot be guessed, a quota, and an end of life."""

import codecs
import os
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from typing import Self

from jaxfold.api.http.errors import ApiError
from jaxfold.api.uploads.kinds import CLAIMS
from jaxfold.api.uploads.kinds import CONTENT_TYPES
from jaxfold.api.uploads.kinds import FileKind

MEGABYTE = 1_000_000
MAX_TEXT_BYTES = 16 * MEGABYTE
"""No context holds more text than this, and it would be sent back in one piece of JSON."""
QUOTA_FULL = "Upload storage quota exceeded; the server cannot accept more uploads until space is freed."
PARTIAL = ".part"
_NAME = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """Where files go and how much of them. `quota_bytes` and `ttl_s` None are off; `pdf_pages` 0 reads every page."""

    folder: Path
    max_bytes: int = 500 * MEGABYTE
    quota_bytes: int | None = None
    ttl_s: float | None = None
    pdf_pages: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the store."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def content_type(self) -> str:
        return CONTENT_TYPES[self.path.suffix[1:]]

    def read_text(self) -> str | None:
        """The text of a text file; None for any other.

        Raises:
            ApiError: 400 for a file that is no text after all, 413 for one that no model could read.
        """
        if CLAIMS.get(self.path.suffix[1:]) != "text":
            return None
        return decoded(self.path)


def decoded(path: Path) -> str:
    """The text of a file: UTF-8, UTF-16 with a mark, else Windows-1252, as old editors write it.

    Raises:
        ApiError: 400, 413 as `Stored.read_text`.
    """
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise ApiError(413, f"a text file may have at most {MAX_TEXT_BYTES // MEGABYTE} MB to be read as a whole")
    raw = path.read_bytes()
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return raw.decode("utf-16")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        if b"\0" in raw or raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ApiError(400, "the file does not hold text") from None
        return raw.decode("cp1252", errors="replace")


class Uploads:
    """The files that clients have sent. Used on the event loop; reading and writing are short."""

    def __init__(self, settings: UploadSettings) -> None:
        """Make the folder where it is missing and count what is in it.

        Raises:
            OSError: the folder cannot be used.
        """
        self.settings = settings
        self._folder = settings.folder.resolve()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.glob(f"*{PARTIAL}"):
            left.unlink(missing_ok=True)
        self._used = sum(path.stat().st_size for path in self._files())
        self.sweep()

    def find(self, name: str) -> Stored | None:
        """The file of that name (or absolute path inside the folder); None for anything else, and past its time."""
        given = Path(name)
        if given.is_absolute() and given.parent == self._folder:
            name = given.name
        if not _NAME.fullmatch(name) or name.rpartition(".")[2] not in CONTENT_TYPES:
            return None
        path = self._folder / name
        if path.is_symlink() or not path.is_file() or self._expired(path):
            return None
        return Stored(path)

    def sweep(self) -> None:
        """Remove the files that are past their time."""
        for path in self._files():
            if self._expired(path):
                self._used -= path.stat().st_size
                path.unlink(missing_ok=True)

    def receive(self) -> "Incoming":
        """A file that is about to be written.

        Raises:
            ApiError: 507 where the quota is used up.
        """
        self.sweep()
        self.reserve(0)
        return Incoming(self, self._folder / f"{uuid.uuid4().hex}{PARTIAL}")

    def too_large(self) -> ApiError:
        """The refusal of a file that has more bytes than one may have."""
        most = self.settings.max_bytes / MEGABYTE
        return ApiError(413, f"File is too large; this server accepts at most {most:g} MB per file.")

    def reserve(self, size: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            ApiError: 507 where they do not fit.
        """
        quota = self.settings.quota_bytes
        if quota is not None and (self._used + size > quota or self._used >= quota):
            raise ApiError(507, QUOTA_FULL, kind="server_error")
        self._used += size

    def release(self, size: int) -> None:
        """Give counted bytes back."""
        self._used -= size

    def _files(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink()]

    def _expired(self, path: Path) -> bool:
        ttl = self.settings.ttl_s
        return ttl is not None and path.stat().st_mtime + ttl < time.time()


class Incoming:
    """A file while it arrives; leaving the context without `keep` removes it and frees its bytes."""

    def __init__(self, uploads: Uploads, path: Path) -> None:
        self._uploads = uploads
        self.path = path
        self.size = 0
        self._kept = False
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if not self._kept:
            self.path.unlink(missing_ok=True)
            self._uploads.release(self.size)

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            ApiError: 413 for too large a file, 507 for a full store.
        """
        assert self._file is not None
        if self.size + len(data) > self._uploads.settings.max_bytes:
            raise self._uploads.too_large()
        self._uploads.reserve(len(data))
        self.size += len(data)
        try:
            self._file.write(data)
            # Here and not when it is closed: a full disk is an answer, not an accident.
            self._file.flush()
        except OSError:
            raise ApiError(507, QUOTA_FULL, kind="server_error") from None

    def close(self) -> None:
        """All bytes are there."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def keep(self, kind: FileKind) -> Stored:
        """Give the file its name; it is found from now on."""
        self.close()
        path = self.path.with_suffix(f".{kind.extension}")
        os.replace(self.path, path)
        self.path = path
        self._kept = True
        return Stored(path)
