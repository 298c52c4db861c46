"""What an uploaded file is, told by its first bytes. Its name only says what it claims to be."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from jaxfold.api.http.errors import ApiError

Media = Literal["image", "video", "audio", "pdf", "text"]

MAX_PIXELS = 64 << 20
MAX_SIDE = 16_384
HEAD_BYTES = 1 << 16
"""How much of a file is looked at: a JPEG's size may stand behind its metadata."""

_CLAIMS: Mapping[Media, str] = MappingProxyType(
    {
        "image": "png jpg jpeg gif webp bmp heic heif",
        "video": "mp4 mov avi mkv webm",
        "audio": "mp3 wav ogg flac m4a",
        "pdf": "pdf",
        "text": (
            "txt csv json xml md log py js ts cs java cpp c h html css yaml yml toml ini cfg sh bat ps1 rb go rs swift "
            "kt sql r m tex rtf"
        ),
    }
)
CLAIMS: Mapping[str, Media] = MappingProxyType(
    {extension: media for media, names in _CLAIMS.items() for extension in names.split()}
)
"""Extension -> what a file of that name is taken for."""
TEXT_TYPE = "text/plain; charset=utf-8"
CONTENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp",
        "heic": "image/heic", "mp4": "video/mp4", "mov": "video/quicktime", "avi": "video/x-msvideo",
        "mkv": "video/x-matroska", "webm": "video/webm", "mp3": "audio/mpeg", "wav": "audio/wav", "ogg": "audio/ogg",
        "flac": "audio/flac", "m4a": "audio/mp4", "pdf": "application/pdf",
    }
    | dict.fromkeys(_CLAIMS["text"].split(), TEXT_TYPE)
)  # fmt: skip
"""Extension of a stored file -> the type it is served as. Nothing that a browser would run is among them."""

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1aE\xdf\xa3", "mkv"),
)
_RIFF = MappingProxyType({b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})
_START_OF_FRAME = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class FileKind:
    """`extension` is the one to store the file under; `size` is (width, height) of an image whose head tells it."""

    media: Media
    extension: str
    size: tuple[int, int] | None = None


def claimed(name: str) -> str:
    """The extension of a file's name, in lower case.

    Raises:
        ApiError: 400 for one that is not taken.
    """
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    if extension not in CLAIMS:
        printable = extension.encode("unicode_escape").decode("ascii")[:16]
        shown = f" '.{printable}'" if extension else ": the name has no extension"
        raise ApiError(
            400,
            f"Unsupported file type{shown}. Upload an image, video, audio, PDF, or plain-text/code file.",
        )
    return extension


def kind_of(extension: str, head: bytes) -> FileKind:
    """The kind of a file that claims `extension` and starts with `head` (HEAD_BYTES of it, or all).

    Raises:
        ApiError: 400 where the bytes are something else, or an image is too large to be decoded safely.
    """
    media = CLAIMS[extension]
    if media == "text":
        if _binary(head):
            raise ApiError(400, f"the file is named .{extension} but does not hold text")
        return FileKind("text", extension)
    found = _sniffed(head)
    if found is None or CLAIMS[found] != media:
        # An Ogg or MP4 file may hold sound or pictures: the name decides between these two.
        if not (found in ("ogg", "mp4", "m4a", "mov") and media in ("audio", "video")):
            what = "a PDF" if media == "pdf" else f"{'an' if media[0] in 'aeiou' else 'a'} {media} file"
            raise ApiError(400, f"the file is named .{extension} but is not {what}")
        found = extension
    if found == "mkv" and extension == "webm":
        found = "webm"
    if media != "image":
        return FileKind(media, found)
    size = image_size(found, head)
    if size is not None and (max(size) > MAX_SIDE or size[0] * size[1] > MAX_PIXELS or min(size) < 1):
        raise ApiError(400, f"the image must have 1 to {MAX_SIDE} pixels a side and at most {MAX_PIXELS} in all")
    return FileKind("image", found, size)


def image_size(extension: str, head: bytes) -> tuple[int, int] | None:
    """Width and height as the image's head tells them; None where it does not.

    Raises:
        ApiError: 400 for a head that is cut short or broken.
    """
    try:
        match extension:
            case "png":
                return _pair(">II", head, 16)
            case "gif":
                return _pair("<HH", head, 6)
            case "bmp":
                width, height = _pair("<ii", head, 18)
                return width, abs(height)
            case "jpg":
                return _jpeg_size(head)
            case "webp":
                return _webp_size(head)
    except (struct.error, IndexError):
        raise ApiError(400, f"the .{extension} image is cut short or broken") from None
    return None


def _sniffed(head: bytes) -> str | None:
    for magic, extension in _MAGIC:
        if head.startswith(magic):
            return extension
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        if brand in _HEIC_BRANDS:
            return "heic"
        return {b"M4A ": "m4a", b"qt  ": "mov"}.get(brand, "mp4")
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE6 in (0xE2, 0xE4, 0xE6):
        return "mp3"
    return None


def _binary(head: bytes) -> bool:
    """True for what no text file holds. UTF-16 needs its mark, since it is full of zero bytes."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    known = _sniffed(head)
    if known is not None and known != "bmp":
        return True
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    return b"\0" in head or controls * 64 > len(head)


def _pair(form: str, head: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, head, at)
    return int(first), int(second)


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """The frame header may stand behind more metadata than was read; then the size is not known."""
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _START_OF_FRAME:
            height, width = _pair(">HH", head, at + 5)
            return width, height
        at += 1 if marker == 0xFF else 2 + int(struct.unpack_from(">H", head, at + 2)[0])
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8 ":
            width, height = _pair("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int(struct.unpack_from("<I", head, 21)[0])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None
