"""The options of `jaxfold serve` that are not the engine's: address, names, replies, limits."""

from pathlib import Path
from typing import Final

import click

from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import ModelId
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options

ADDRESS: Final = "Address"
NAMES: Final = "Names"
REPLIES: Final = "Replies"
LIMITS: Final = "Limits"

address_flags: Final[Decorator] = options(
    option("--host", default="127.0.0.1", also=("HOST",), group=ADDRESS, help="Address to listen on."),
    option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8080,
        also=("PORT",),
        group=ADDRESS,
        help="Port to listen on; 0 takes a free one.",
    ),
)

name_flags: Final[Decorator] = options(
    option(
        "--name",
        type=ModelId(),
        group=NAMES,
        show_default="the catalogue's or the file's name",
        help="The id that clients see.",
    ),
    option("--alias", type=ModelId(), multiple=True, group=NAMES, help="One more id; may be repeated."),
    option(
        "--strict-model/--no-strict-model",
        default=False,
        group=NAMES,
        help="Answer 404 to an id that is not served, instead of serving it all the same.",
    ),
)

reply_flags: Final[Decorator] = options(
    option(
        "--max-tokens",
        type=click.IntRange(min=1),
        default=20000,
        group=REPLIES,
        help="Length of a reply whose request sets none, cut to the room that is left.",
    ),
    option(
        "--reply-limit",
        type=click.Choice(["reject", "clamp"]),
        default="reject",
        group=REPLIES,
        help="What happens to a request that asks for a longer reply than there is room for.",
    ),
    option(
        "--chat-template",
        type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
        group=REPLIES,
        show_default="the model's own",
        help="A Jinja file that renders conversations.",
    ),
)

limit_flags: Final[Decorator] = options(
    option(
        "--max-body-mb",
        type=Real(min=0, max=4096, min_open=True),
        default=64,
        group=LIMITS,
        help="Largest request body in MiB.",
    ),
    option(
        "--drain-seconds",
        type=Real(min=0, max=86400),
        default=30,
        group=LIMITS,
        help="Time that running replies get after SIGTERM.",
    ),
)
