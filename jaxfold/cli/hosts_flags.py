"""Several hosts: the options of `jaxfold serve`, and what it does on a host that holds no engine."""

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Final
from typing import NoReturn

import click

from jaxfold.cli.errors import EXIT_HOST_LOST
from jaxfold.cli.errors import CliError
from jaxfold.cli.errors import report
from jaxfold.cli.errors import sentence
from jaxfold.cli.parameters import Decorator
from jaxfold.cli.parameters import Real
from jaxfold.cli.parameters import option
from jaxfold.cli.parameters import options
from jaxfold.cli.progress import Steps

if TYPE_CHECKING:
    from jaxfold.runtime.hosts.seat import Seat

HOSTS: Final = "Several hosts"
SECRET_VARIABLE: Final = "JAXFOLD_HOSTS_SECRET"
SHORTEST_SECRET: Final = 16
LAST_S: Final = 7.0
"""Seconds after the loss of a host in which the server may end in order; then it is ended."""

hosts_flags: Final[Decorator] = options(
    option(
        "--coordinator",
        metavar="HOST:PORT",
        group=HOSTS,
        show_default="one host",
        help="Where host 0 waits for the others that share the model; JAX's own coordinator takes the port after it. "
        "The same on every host.",
    ),
    option("--num-hosts", type=click.IntRange(2, 1024), group=HOSTS, help="Hosts in all, a process each."),
    option(
        "--host-id",
        type=click.IntRange(min=0),
        group=HOSTS,
        help="This host's number. Host 0 serves; the others, from 1 on, compute their part for it.",
    ),
    option(
        "--hosts-secret-file",
        type=click.Path(path_type=Path),
        group=HOSTS,
        show_default=f"the variable {SECRET_VARIABLE}",
        help="A file with the secret that all hosts know, mode 0600, at least 16 characters.",
    ),
    option(
        "--join-seconds",
        type=Real(min=0, max=86400, min_open=True),
        default=300,
        group=HOSTS,
        help="How long a host waits for the others at the start.",
    ),
)


def seat_of(flags: Mapping[str, Any]) -> "Seat | None":
    """This process's place among several hosts, None where it serves alone.

    Raises:
        CliError: the options do not go together, or there is no usable secret.
    """
    names = ("coordinator", "num_hosts", "host_id")
    missing = ["--" + name.replace("_", "-") for name in names if flags[name] is None]
    if len(missing) == len(names):
        return None
    if missing:
        raise CliError(f"several hosts: {' and '.join(missing)} must be given, too")
    if flags["host_id"] >= flags["num_hosts"]:
        raise CliError(f"--host-id {flags['host_id']} is none of {flags['num_hosts']} hosts, numbered from 0")
    if flags.get("embeddings") is not None:
        # It would start JAX before the hosts have met.
        raise CliError("several hosts share a chat model alone: serve --embeddings from a process of its own")
    from jaxfold.runtime.hosts.seat import Seat

    host, port = address_of(flags["coordinator"])
    secret = read_secret(flags["hosts_secret_file"])
    return Seat(host, port, flags["num_hosts"], flags["host_id"], secret, flags["join_seconds"])


def address_of(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, where an IPv6 address stands in brackets.

    Raises:
        CliError: it is none.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not port.isdecimal() or not 0 < int(port) < 65535:
        raise CliError(f"--coordinator {text}: give it as HOST:PORT, with a port from 1 to 65534")
    return bare, int(port)


def read_secret(path: Path | None) -> bytes:
    """What all hosts know.

    Raises:
        CliError: there is none, others can read it, or it is too short; the sentence does not hold it.
    """
    if path is None:
        text, where = os.environ.get(SECRET_VARIABLE, ""), SECRET_VARIABLE
        if not text:
            raise CliError(f"several hosts need a secret: --hosts-secret-file FILE, or the variable {SECRET_VARIABLE}")
    else:
        where = f"--hosts-secret-file {path}"
        try:
            if path.stat().st_mode & 0o077:
                raise CliError(f"{where}: other users can read it; make it mode 0600")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"{where}: {error.strerror if isinstance(error, OSError) else 'is not text'}") from None
    secret = text.strip().encode()
    if len(secret) < SHORTEST_SECRET:
        raise CliError(f"{where}: a secret has at least {SHORTEST_SECRET} characters")
    return secret


def follow_host_0(model: str | None, flags: Mapping[str, Any], seat: "Seat") -> NoReturn:
    """What `jaxfold serve` does on every host but the first. It ends the process."""
    from jaxfold.cli.engine_flags import engine_options
    from jaxfold.cli.models import locate
    from jaxfold.runtime.hosts.group import Follower

    group = Follower(seat, end_now)
    code, reason = 0, ""
    try:
        if model is None:
            raise CliError("several hosts share a chat model: name one as MODEL")
        with Steps() as steps:
            settings = engine_options(locate(model, steps), flags)
            steps("loading JAX")
            from jaxfold.runtime.loader import follow_engine

            follow_engine(settings, group, steps)
    except BaseException as error:
        # Told before host 0 is: once that one has ended, JAX may abort this process.
        code = report(error, sys.stderr)
        reason = "it was interrupted" if isinstance(error, KeyboardInterrupt) else sentence(error)
    group.close(reason)
    if not reason:
        click.echo("stopped")
    # Not through Python's own ending: JAX would wait for hosts that may be gone.
    leave(code)


def end_now(reason: str) -> None:
    """Another host is lost: whatever the main thread waits for may never come."""
    print(f"\njaxfold: {reason}", file=sys.stderr)
    leave(EXIT_HOST_LOST)


def end_soon(reason: str) -> None:
    """Host 0 has lost another host: end the process should the server not manage to."""
    timer = threading.Timer(LAST_S, end_now, (reason,))
    timer.daemon = True
    timer.start()


def leave(code: int) -> NoReturn:
    """End the process at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
