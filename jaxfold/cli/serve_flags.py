"""The options of `jaxfold serve` that are not the engine's: address, access, names, replies, limits."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final

import click

from jaxfold.chat.tools.registry import FORMATS
from jaxfold.chat.types import LADDER
from jaxfold.cli.environment import variable_of
from jaxfold.cli.errors import CliError
from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import ModelId
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options

if TYPE_CHECKING:
    from jaxfold.api.access.keys import KeyRing
    from jaxfold.api.access.origins import BrowserRules
    from jaxfold.api.responses.store import StoreSettings

ADDRESS: Final = "Address"
ACCESS: Final = "Access"
NAMES: Final = "Names"
REPLIES: Final = "Replies"
STORE: Final = "Stored responses"
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


class Key(click.ParamType[str]):
    """An API key. Never shown: what is wrong with one is said without it."""

    name = "key"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value).strip()


class Items(click.ParamType[tuple[str, ...]]):
    """Words separated by commas."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        words = value if isinstance(value, tuple) else (word.strip() for word in str(value).split(","))
        return tuple(word for word in words if word)


access_flags: Final[Decorator] = options(
    option(
        "--api-key",
        type=Key(),
        multiple=True,
        group=ACCESS,
        help="A key that requests must bring; may be repeated. Other users of the machine can read it in the list of "
        "processes: a file is better.",
    ),
    option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        group=ACCESS,
        help="A file of keys, one a line as KEY or LABEL: KEY, mode 0600. It may be replaced while the server runs.",
    ),
    option("--metrics-open", is_flag=True, default=False, group=ACCESS, help="/metrics needs no key."),
    option(
        "--allowed-origins",
        type=Items(),
        default="loopback",
        metavar="LIST",
        group=ACCESS,
        help="Web pages that may use the server, as https://example.org,...; loopback: those of this machine; *: all.",
    ),
    option(
        "--allowed-hosts",
        type=Items(),
        default="",
        metavar="LIST",
        group=ACCESS,
        show_default="any, on a loopback address only its own names",
        help="Names under which the server may be reached, as proxy.example,...",
    ),
)


def key_ring(ctx: click.Context, flags: Mapping[str, Any]) -> "KeyRing":
    """The keys of the flags, of JAXFOLD_API_KEY and of the file, added up.

    Raises:
        CliError: one of them cannot be used; the sentence holds no key.
    """
    from jaxfold.api.access.keys import Key as ApiKey
    from jaxfold.api.access.keys import KeyRing
    from jaxfold.api.access.keys import KeySourceError
    from jaxfold.api.access.keys import keys_of

    variable = variable_of("api_key")
    # click reads the variable only where there is no flag, but the sources add up.
    from_flags = ctx.get_parameter_source("api_key") is click.core.ParameterSource.COMMANDLINE
    texts = {"cli": flags["api_key"] if from_flags else (), "env": _variable_keys(variable)}
    names = {"cli": "--api-key", "env": variable}
    keys: list[ApiKey] = []
    for source, values in texts.items():
        try:
            keys += keys_of(values, source)
        except KeySourceError as error:
            raise CliError(f"{names[source]}: {error}") from None
    try:
        return KeyRing(keys, flags["api_key_file"])
    except KeySourceError as error:
        raise CliError(str(error)) from None


def _variable_keys(variable: str) -> tuple[str, ...]:
    text = os.environ.get(variable, "")
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    if text and not keys:
        raise CliError(f"{variable} is set but holds no key")
    return keys


def browser_rules(host: str, flags: Mapping[str, Any]) -> "BrowserRules":
    """What --allowed-origins and --allowed-hosts ask for, on a server that listens on `host`.

    Raises:
        CliError: an entry is no origin or no host name.
    """
    from jaxfold.api.access.origins import BrowserRules
    from jaxfold.api.access.origins import host_name
    from jaxfold.api.access.origins import is_loopback
    from jaxfold.api.access.origins import is_origin
    from jaxfold.api.access.origins import normal_origin

    for origin in flags["allowed_origins"]:
        if not is_origin(origin):
            raise CliError(
                f"--allowed-origins: {origin!r} is no origin; write https://example.org, loopback, null or *"
            )
    for name in flags["allowed_hosts"]:
        if "/" in name or "@" in name or not name.isprintable() or " " in name:
            raise CliError(f"--allowed-hosts: {name!r} is no host name")
    names = tuple(map(host_name, flags["allowed_hosts"]))
    restricted = bool(names) or is_loopback(host)
    origins = tuple(map(normal_origin, flags["allowed_origins"]))
    return BrowserRules((*names, host_name(host)) if restricted else None, origins)


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
        default=None,
        show_default="20000; on Responses the rest of the context",
        group=REPLIES,
        help="Length of a reply whose request sets none, cut to the room that is left.",
    ),
    option(
        "--reply-limit",
        type=click.Choice(["reject", "clamp"]),
        default=None,
        show_default="reject; on Messages clamp",
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
    option(
        "--tool-format",
        type=click.Choice(list(FORMATS)),
        group=REPLIES,
        show_default="what the template shows",
        help="How the model writes tool calls.",
    ),
    option(
        "--reasoning-effort",
        type=click.Choice(["none", *LADDER]),
        group=REPLIES,
        show_default="the template's own",
        help="Effort of a chat that names none; none turns thinking off.",
    ),
    option(
        "--thinking-budget",
        type=click.IntRange(min=1),
        group=REPLIES,
        show_default="none",
        help="Most tokens of reasoning in a reply whose request names no thinking_budget.",
    ),
    option(
        "--hosted-tools",
        type=click.Choice(["reject", "drop"]),
        default="reject",
        group=REPLIES,
        help="What happens in a Responses request to tools that OpenAI's servers would run, such as web_search, and "
        "to `include`.",
    ),
)

store_flags: Final[Decorator] = options(
    option(
        "--responses-max",
        type=click.IntRange(min=0, max=1_000_000),
        default=1024,
        group=STORE,
        help="How many responses are kept; the ones used last stay.",
    ),
    option(
        "--responses-mb",
        type=Real(min=0, max=1_000_000, min_open=True),
        default=256,
        group=STORE,
        help="How many MiB of responses are kept.",
    ),
    option(
        "--responses-minutes",
        type=Real(min=0, max=525_600, min_open=True),
        default=60,
        group=STORE,
        help="How long a response is kept that nobody uses.",
    ),
    option(
        "--redis-url",
        metavar="URL",
        group=STORE,
        show_default="this process's memory",
        help="A Redis server that keeps them instead: redis://[USER:PASSWORD@]HOST:PORT/DB.",
    ),
)


def store_settings(flags: Mapping[str, Any]) -> "StoreSettings":
    """What the flags say of the store of responses.

    Raises:
        CliError: the Redis server cannot be used; the sentence holds no address, since that may hold a password.
    """
    from jaxfold.api.responses.store import StoreError
    from jaxfold.api.responses.store import StoreSettings

    settings = StoreSettings(
        max_entries=flags["responses_max"],
        max_mb=flags["responses_mb"],
        ttl_minutes=flags["responses_minutes"],
        redis_url=flags["redis_url"],
    )
    if settings.redis_url is not None:
        from jaxfold.api.responses.store_redis import check_redis

        try:
            check_redis(settings.redis_url)
        except StoreError as error:
            raise CliError(f"--redis-url: {error}") from None
    return settings


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
