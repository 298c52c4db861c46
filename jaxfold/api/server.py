"""Runs the application on Hypercorn's connections until a signal, then drains.

The signals are handled here: not ready at once, keep accepting and answering 503 while running replies finish, and only
then stop accepting. A second signal forces.
"""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.utils import wrap_app
from quart import Quart

from jaxfold.api.app import state_of
from jaxfold.api.settings import ApiSettings
from jaxfold.api.state import ServerState

BACKLOG = 128
MAX_HEADER_BYTES = 16 * 1024
CLOSE_S = 5.0
"""Time for the last bytes of cut replies, and for connections to close, before the server stops waiting."""
ABORT_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("jaxfold.api")


class BindError(Exception):
    """The address cannot be listened on. The message is one sentence."""


class Shutdown:
    """Asked once: drain. Asked again: stop at once. Used on the event loop's thread."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()

    def ask(self) -> None:
        if self.asked.is_set():
            self.forced.set()
        self.asked.set()


async def serve(
    app: Quart,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str, int], None] | None = None,
    shutdown: Shutdown | None = None,
) -> int:
    """Serve `app` until SIGTERM, SIGINT or `shutdown.ask()`, then drain; the process's exit code.

    `on_listening` is called with host and port once connections are accepted (`port` 0 takes a free one). The code is
    0 after a drain, also when replies had to be cut off at its deadline, and 1 after a second signal.

    Raises:
        BindError: the address is in use, or not one of this machine.
    """
    state = state_of(app)
    shutdown = shutdown or Shutdown()
    listener = listen(host, port, state.settings.send_timeout_s)
    connections = Connections(app, hypercorn_config(state.settings))
    await app.startup()
    server = await asyncio.start_server(connections.serve, sock=listener, backlog=BACKLOG)
    try:
        with _signals(shutdown.ask):
            if on_listening is not None:
                address = listener.getsockname()
                on_listening(address[0], address[1])
            await shutdown.asked.wait()
            await _drain(state, shutdown)
            server.close()
            await _first_of(connections.end(), shutdown.forced.wait(), timeout=CLOSE_S)
            return 1 if shutdown.forced.is_set() else 0
    finally:
        server.close()
        await connections.abort()
        await app.shutdown()


class Connections:
    """The open connections: Hypercorn serves each, this ends them.

    Hypercorn's own server is not used: when it is told to stop it waits without a limit for connections whose client
    has stopped reading, and it keeps the sockets of clients that left until their idle timer has run out.
    """

    def __init__(self, app: Quart, config: Config) -> None:
        self._app = wrap_app(app, config.wsgi_max_body_size, "asgi")
        self._config = config
        self._context = WorkerContext(None)
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        loop = asyncio.get_running_loop()
        try:
            await _Connection(self._app, loop, self._config, self._context, {}, reader, writer)
        finally:
            del self._open[task]

    async def end(self) -> None:
        """End every connection: idle ones now, the others after their response."""
        await self._context.terminated.set()
        if self._open:
            await asyncio.wait(self._open)

    async def abort(self) -> None:
        """Cut what is left, whatever it still has to send."""
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open, timeout=ABORT_S)


class _Connection(TCPServer):
    """Hypercorn's connection, ended when its client has left."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


def hypercorn_config(settings: ApiSettings) -> Config:
    """Hypercorn's settings, each by choice.

    There is no read timeout: Hypercorn counts it while a reply is being generated too, and would end the connection of
    every client that waits quietly for longer. A header that does not arrive is ended by the keep-alive timeout (which
    runs until a whole header is there), a body by the application's body timeout, an unread reply by the socket's own.
    """
    config = Config()
    config.keep_alive_timeout = settings.keep_alive_s
    config.read_timeout = None
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


def listen(host: str, port: int, send_timeout_s: float) -> socket.socket:
    """A listening socket; connections wait in its backlog until the server takes them.

    Raises:
        BindError: no address of `host` can be listened on.
    """
    reason, taken = "it has no address", False
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BindError(f"cannot listen on {host}: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        listener = socket.socket(family, kind, protocol)
        try:
            _set_options(listener, send_timeout_s)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            reason, taken = error.strerror or str(error), error.errno in (errno.EADDRINUSE, errno.EACCES)
            continue
        listener.setblocking(False)
        return listener
    hint = "; another port can be given with --port" if taken else ""
    raise BindError(f"cannot listen on {host} port {port}: {reason}{hint}")


def _set_options(listener: socket.socket, send_timeout_s: float) -> None:
    """Options that accepted connections inherit: find clients that vanished, end those that stopped reading."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(send_timeout_s * 1000)))


async def _drain(state: ServerState, shutdown: Shutdown) -> None:
    """Refuse new requests, let the running replies finish, cut off what is left."""
    state.drain()
    seconds = state.settings.drain_seconds
    if state.busy:
        logger.info("shutting down: running replies have %g s to finish; a second signal ends them at once", seconds)
    else:
        logger.info("shutting down")
    await _first_of(state.idle(), shutdown.forced.wait(), timeout=seconds)
    state.cancel_all()
    await _first_of(state.idle(), shutdown.forced.wait(), timeout=CLOSE_S)


async def _first_of(*coroutines: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Return when the first is done, or after `timeout` seconds; the others are cancelled."""
    tasks = {asyncio.create_task(one) for one in coroutines}
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call `handler` on SIGTERM and SIGINT. Outside the main thread (tests) there are no signals to handle."""
    loop = asyncio.get_running_loop()
    added = []
    for number in SIGNALS:
        try:
            loop.add_signal_handler(number, handler)
        except (ValueError, RuntimeError, NotImplementedError):
            continue
        added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)
