"""The options of `jaxfold serve` for the page, for uploaded files and for pulling models."""

from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options

if TYPE_CHECKING:
    from jaxfold.api.uploads.store import UploadSettings

PAGE: Final = "Page and files"
HOUR_S: Final = 3600.0

webui_flags: Final[Decorator] = options(
    option("--webui/--no-webui", default=True, group=PAGE, help="Serve the page at /; else / answers as /health does."),
    option("--uploads/--no-uploads", default=True, group=PAGE, help="Take files at /api/upload."),
    option(
        "--upload-dir",
        type=click.Path(file_okay=False, path_type=Path),
        group=PAGE,
        show_default="beside the models",
        help="Folder of uploaded files.",
    ),
    option(
        "--upload-max-mb", type=Real(min=0, min_open=True), default=500, group=PAGE, help="Largest file in megabytes."
    ),
    option(
        "--upload-quota-mb",
        type=Real(min=0, min_open=True),
        group=PAGE,
        show_default="off",
        help="Megabytes of all files together.",
    ),
    option(
        "--upload-ttl-hours",
        type=Real(min=0, min_open=True),
        group=PAGE,
        show_default="off",
        help="Files that are older are removed.",
    ),
    option(
        "--pdf-max-pages", type=click.IntRange(min=0), default=0, group=PAGE, help="Pages of a PDF to read; 0 is all."
    ),
    option(
        "--allow-pull/--no-allow-pull",
        default=False,
        group=PAGE,
        help="Let /api/pull fetch models of the catalogue, and no others.",
    ),
)


def upload_settings(flags: Mapping[str, Any]) -> "UploadSettings | None":
    """What the options say about uploads; None where there are none."""
    from jaxfold.api.uploads.store import MEGABYTE
    from jaxfold.api.uploads.store import UploadSettings
    from jaxfold.checkpoints.catalogue import default_models_dir

    if not flags["uploads"]:
        return None
    folder = flags["upload_dir"]
    if folder is None:
        folder = default_models_dir().parent / "uploads"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            # Nobody asked for this folder, so the server does without it.
            click.echo(f"jaxfold: warning: no uploads, since {folder} cannot be used ({error.strerror})", err=True)
            return None
    quota, hours = flags["upload_quota_mb"], flags["upload_ttl_hours"]
    return UploadSettings(
        folder=folder,
        max_bytes=round(flags["upload_max_mb"] * MEGABYTE),
        quota_bytes=None if quota is None else round(quota * MEGABYTE),
        ttl_s=None if hours is None else hours * HOUR_S,
        pdf_pages=flags["pdf_max_pages"],
    )


def puller(name: str, progress: Callable[[str], None]) -> None:
    """Fetch a model of the catalogue for /api/pull.

    Raises:
        RequestError: there is no such model, or it cannot be had.
    """
    from jaxfold.chat.types import RequestError
    from jaxfold.checkpoints.base import CheckpointError
    from jaxfold.checkpoints.catalogue import CATALOGUE
    from jaxfold.checkpoints.catalogue import resolve

    entry = CATALOGUE.get(name.lower())
    if entry is None:
        known = ", ".join(sorted(CATALOGUE))
        raise RequestError(f"that model is not in the catalogue, which holds {known}", "model")
    progress(f"looking for {entry.name}")
    try:
        resolve(entry.name, progress=progress)
    except CheckpointError as error:
        raise RequestError(f"{entry.name} {error.reason}", "model") from None
