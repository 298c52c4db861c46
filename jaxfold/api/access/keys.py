"""API keys: where they come from, how they are compared, and how a key file is replaced while the server runs.

Only SHA-256 digests are kept. A request's key is compared with every digest in constant time, so the time an answer
takes tells nothing about how close a guess was or which key it came near to.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxfold.api.http.errors import ApiError

MAX_KEYS = 1000
MAX_KEY_CHARS = 512
MAX_FILE_BYTES = 1 << 20
POLL_S = 1.0
"""Seconds between two looks at the key file's modification time."""
UNAUTHENTICATED = "unauthenticated"
"""The label of requests without a valid key."""

_KEY = re.compile(r"[\x21-\x7e]+")
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LABELLED = re.compile(r"([^:]*):\s*(.*)")
_OWN_LABEL = re.compile(rf"(cli|env|file)-[0-9]+|{UNAUTHENTICATED}")
_QUERY_NAME = re.compile(r"(^|&)(key|api[-_]?key|x-api-key|access[-_]token|authorization)=", re.IGNORECASE)

logger = logging.getLogger("jaxfold.api")

Headers = Iterable[tuple[bytes, bytes]]


class KeySourceError(Exception):
    """Keys that cannot be used. The message is one sentence and holds no key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key's digest, and the name under which logs and metrics show its requests."""

    label: str
    digest: bytes


class KeyRing:
    """The keys that open the server: fixed ones, and those of a file that may be replaced. Without any it is open.

    Used on the event loop's thread only.

    Raises:
        KeySourceError: the file cannot be used, or there are too many keys.
    """

    def __init__(
        self, fixed: Sequence[Key] = (), file: Path | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        if len(fixed) > MAX_KEYS:
            raise KeySourceError(f"there are {len(fixed)} keys; at most {MAX_KEYS} can be used")
        self._fixed = tuple(fixed)
        self._file = None if file is None else KeyFile(file, now)

    @property
    def required(self) -> bool:
        """Whether requests need a key. Does not change: a broken file closes the routes, it does not open them."""
        return bool(self._fixed) or self._file is not None

    def reload(self) -> None:
        """Read the key file now, whatever its modification time says."""
        if self._file is not None:
            self._file.reload()

    def label_of(self, headers: Headers) -> str | None:
        """The label of the key in a request's headers; None where there is none that is known."""
        digests = [hashlib.sha256(key).digest() for key in presented(headers)]
        label = None
        for key in self._keys():
            matches = [hmac.compare_digest(key.digest, digest) for digest in digests]
            if any(matches) and label is None:
                label = key.label
        return label

    def _keys(self) -> tuple[Key, ...]:
        if self._file is None:
            return self._fixed
        of_file = self._file.keys()
        return () if of_file is None else self._fixed + of_file


class KeyFile:
    """Keys in a file of their owner's. It is looked at again when its modification time, size or owner changes.

    Raises:
        KeySourceError: it cannot be used now. Later that only closes it (`keys` is None) until it is right again.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._checked = now()
        self._keys: tuple[Key, ...] | None
        self._signature: tuple[int, ...] | None
        self._keys, self._signature = read_key_file(path)

    def keys(self) -> tuple[Key, ...] | None:
        """The keys of the file as it is, at most `POLL_S` seconds old; None while it cannot be used."""
        now = self._now()
        if now - self._checked >= POLL_S:
            self._checked = now
            if self._keys is None or _signature_of(self._path) != self._signature:
                self.reload()
        return self._keys

    def reload(self) -> None:
        """Read the file again. What is wrong with it goes to the log."""
        was_closed = self._keys is None
        try:
            self._keys, self._signature = read_key_file(self._path)
        except KeySourceError as error:
            if not was_closed:
                logger.error("%s: no key is accepted until that is put right", error)
            self._keys = self._signature = None
        else:
            logger.info("the key file was read again: %d keys", len(self._keys))


def read_key_file(path: Path) -> tuple[tuple[Key, ...], tuple[int, ...]]:
    """The keys in a file, and what changes when the file does.

    Raises:
        KeySourceError: it cannot be read, is no ordinary file, others may read it, or it is malformed.
    """
    try:
        # Without O_NONBLOCK the name of a pipe would stop the server.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            _check_file(path, status)
            data = os.read(descriptor, MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeySourceError(f"the key file {path} cannot be read: {error.strerror}") from None
    try:
        return parse_keys(data), _signature(status)
    except KeySourceError as error:
        raise KeySourceError(f"the key file {path}: {error}") from None


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeySourceError(f"the key file {path} is not an ordinary file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise KeySourceError(f"the key file {path} has mode {mode:04o}, but only its owner may use it: chmod 600")
    if status.st_size > MAX_FILE_BYTES:
        raise KeySourceError(f"the key file {path} is larger than {MAX_FILE_BYTES >> 10} KiB")


def parse_keys(data: bytes) -> tuple[Key, ...]:
    """The keys in a file's text: one a line, as `key` or `label: key`; blank lines and lines with # say nothing.

    Several keys may have one label, so that an old and a new key of one user can hold side by side.

    Raises:
        KeySourceError: with the number of the line that is wrong, or because there is no key.
    """
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise KeySourceError("it is not UTF-8 text") from None
    found: dict[bytes, Key] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        try:
            key = _line_key(line, len(found) + 1)
        except KeySourceError as error:
            raise KeySourceError(f"line {number}: {error}") from None
        if key.digest in found:
            raise KeySourceError(f"line {number}: this key is there already")
        found[key.digest] = key
    if not found:
        raise KeySourceError("it holds no key")
    if len(found) > MAX_KEYS:
        raise KeySourceError(f"it holds {len(found)} keys; at most {MAX_KEYS} can be used")
    return tuple(found.values())


def keys_of(texts: Iterable[str], source: str) -> tuple[Key, ...]:
    """Keys without labels of their own: `source`-1, `source`-2 and so on.

    Raises:
        KeySourceError: one of them is no key.
    """
    return tuple(Key(f"{source}-{number}", _digest(text)) for number, text in enumerate(texts, start=1))


def presented(headers: Headers) -> list[bytes]:
    """The keys that a request's headers hold: a Bearer token, an x-api-key, or both. A header that comes twice is
    none."""
    values: dict[bytes, list[bytes]] = {b"authorization": [], b"x-api-key": []}
    for name, value in headers:
        if (name := name.lower()) in values:
            values[name].append(value.strip())
    keys = []
    if len(values[b"authorization"]) == 1:
        scheme, _, token = values[b"authorization"][0].partition(b" ")
        if scheme.lower() == b"bearer":
            keys.append(token.strip())
    if len(values[b"x-api-key"]) == 1:
        keys.append(values[b"x-api-key"][0])
    return [key for key in keys if key]


def unauthorised(headers: Headers, query: bytes) -> ApiError:
    """401 for a request whose headers hold no valid key."""
    if presented(headers):
        message = "the API key is not valid"
    elif _QUERY_NAME.search(query.decode("latin-1")):
        message = "a key in the URL is not accepted: send it as Authorization: Bearer KEY or as x-api-key: KEY"
    else:
        message = "an API key is needed: send it as Authorization: Bearer KEY or as x-api-key: KEY"
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _line_key(line: str, number: int) -> Key:
    labelled = _LABELLED.fullmatch(line)
    if labelled is None:
        return Key(f"file-{number}", _digest(line))
    label, text = labelled.groups()
    label = label.strip()
    if not _LABEL.fullmatch(label):
        raise KeySourceError("a label has 1 to 64 letters, digits, dots, underscores or hyphens, and a key no colon")
    if _OWN_LABEL.fullmatch(label):
        raise KeySourceError("labels like file-1 and unauthenticated are given by the server itself")
    return Key(label, _digest(text))


def _digest(text: str) -> bytes:
    if not _KEY.fullmatch(text) or len(text) > MAX_KEY_CHARS:
        raise KeySourceError(f"a key has 1 to {MAX_KEY_CHARS} visible ASCII characters without blanks")
    return hashlib.sha256(text.encode("ascii")).digest()


def _signature_of(path: Path) -> tuple[int, ...] | None:
    try:
        return _signature(os.stat(path))
    except OSError:
        return None


def _signature(status: os.stat_result) -> tuple[int, ...]:
    """ctime changes with the mode and the owner too, so that a file opened to others is noticed."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
