"""`jaxfold serve`: the port first, then the model, then requests."""

import asyncio
import contextlib
import dataclasses
import faulthandler
import gc
import json
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING
from typing import Any

import click

from jaxfold.cli.config_file import config_option
from jaxfold.cli.embedding_flags import StartedEncoder
from jaxfold.cli.embedding_flags import embedding_flags
from jaxfold.cli.embedding_flags import served_names
from jaxfold.cli.embedding_flags import start_encoder
from jaxfold.cli.engine_flags import engine_flags
from jaxfold.cli.engine_flags import queue_flags
from jaxfold.cli.errors import CliError
from jaxfold.cli.errors import report
from jaxfold.cli.errors import sentence
from jaxfold.cli.hosts_flags import end_soon
from jaxfold.cli.hosts_flags import follow_host_0
from jaxfold.cli.hosts_flags import hosts_flags
from jaxfold.cli.hosts_flags import leave
from jaxfold.cli.hosts_flags import seat_of
from jaxfold.cli.parameters import Command
from jaxfold.cli.parameters import log_level_option
from jaxfold.cli.parameters import optional_model_argument
from jaxfold.cli.progress import Steps
from jaxfold.cli.progress import configure_logging
from jaxfold.cli.sampling_flags import sampling_flags
from jaxfold.cli.sampling_flags import server_sampling_flags
from jaxfold.cli.serve_flags import access_flags
from jaxfold.cli.serve_flags import address_flags
from jaxfold.cli.serve_flags import browser_rules
from jaxfold.cli.serve_flags import key_ring
from jaxfold.cli.serve_flags import limit_flags
from jaxfold.cli.serve_flags import name_flags
from jaxfold.cli.serve_flags import reply_flags
from jaxfold.cli.serve_flags import store_flags
from jaxfold.cli.serve_flags import store_settings
from jaxfold.cli.webui_flags import puller
from jaxfold.cli.webui_flags import upload_settings
from jaxfold.cli.webui_flags import webui_flags

if TYPE_CHECKING:
    from jaxfold.api.access.keys import KeyRing
    from jaxfold.api.access.origins import BrowserRules
    from jaxfold.api.settings import ModelFile
    from jaxfold.api.state import ServerState
    from jaxfold.runtime.hosts.group import Leader
    from jaxfold.runtime.hosts.seat import Seat

LINGER_S = 2.0
"""How long a server that has lost a host answers that it is not ready, before it ends."""
HEALTH_PERIOD_S = 1.0
"""How often the command looks whether the engine has given up."""


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  jaxfold serve smollm2:135m
  jaxfold serve model.gguf --port 8000 --context 8192 --parallel 16
  jaxfold serve models/qwen3 --name qwen --alias gpt-4o-mini --temperature 0.7
  jaxfold serve smollm2:135m --embeddings all-minilm:l6-v2""",
)
@optional_model_argument
@address_flags
@access_flags
@name_flags
@reply_flags
@sampling_flags
@server_sampling_flags
@webui_flags
@embedding_flags
@engine_flags
@hosts_flags
@queue_flags
@store_flags
@limit_flags
@log_level_option
@config_option
def serve(model: str | None, host: str, port: int, log_level: str, **flags: Any) -> int:
    """Serve MODEL over OpenAI's and Anthropic's APIs at http://HOST:PORT/v1, Ollama's at /api, and as a page at /.

    An encoder for embeddings is served beside it, or alone, with --embeddings.

    The port is taken before the model is loaded; /health tells when it is ready. Ctrl-C or SIGTERM ends it.
    """
    from jaxfold.api.access.origins import is_loopback

    configure_logging(log_level)
    seat = seat_of(flags)
    if seat is not None and seat.host_id:
        follow_host_0(model, flags, seat)
    keys = key_ring(click.get_current_context(), flags)
    server = _Server(model, flags, keys, browser_rules(host, flags), seat)
    if not is_loopback(host) and not keys.required:
        click.echo(f"jaxfold: warning: {host} can be reached from other machines, and no key protects it", err=True)
    _operator_signals()
    try:
        code = asyncio.run(server.run(host, port))
    except BaseException as error:
        if seat is not None:
            # Python's own ending would wait for JAX, and that for hosts which may be gone.
            leave(report(error, sys.stderr))
        raise
    if server.loader.is_alive():
        # Stopped while the model was loading: compilation cannot be interrupted, and there is nothing to save.
        leave(code)
    click.echo("stopped")
    return code


def _operator_signals() -> None:
    """SIGUSR1 writes every thread's stack to stderr; SIGHUP (a terminal that closed) leaves the server running.

    With a key file SIGHUP also reads it again, from when the server listens (`_Server._listening`).
    """
    if hasattr(signal, "SIGUSR1"):
        # The process's own stderr: what stands in for it may have no file descriptor to write to in a handler.
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or sys.stderr, all_threads=True)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class _Server:
    """One run of the command. The loader has its own thread, so that /health answers meanwhile."""

    def __init__(
        self,
        model: str | None,
        flags: dict[str, Any],
        keys: "KeyRing",
        browsers: "BrowserRules",
        seat: "Seat | None" = None,
    ) -> None:
        # These bring Quart and Hypercorn, which `jaxfold --help` does without.
        from jaxfold.api.app import create_app
        from jaxfold.api.server import Shutdown
        from jaxfold.api.settings import ApiSettings
        from jaxfold.cli.loading import chat_settings
        from jaxfold.cli.loading import read_template

        self._model = model
        self._flags = flags
        names = served_names(model, flags)
        self._template = read_template(flags["chat_template"])
        self._chat = chat_settings(flags)
        settings = ApiSettings(
            model=names.main,
            serves_chat=names.chat is not None,
            encoder=names.encoder,
            aliases=flags["alias"],
            strict_model=flags["strict_model"],
            max_body_mb=flags["max_body_mb"],
            drain_seconds=flags["drain_seconds"],
            messages_overflow=flags["reply_limit"] or "clamp",
            default_is_rest=flags["max_tokens"] is None,
            hosted_tools=flags["hosted_tools"],
            reasoning_effort=flags["reasoning_effort"],
            responses=store_settings(flags),
            keys=keys,
            metrics_open=flags["metrics_open"],
            browsers=browsers,
            puller=puller if flags["allow_pull"] else None,
            uploads=upload_settings(flags),
            webui=flags["webui"],
        )
        self._keys = keys
        self._seat = seat
        self._hosts: Leader | None = None
        self._app = create_app(None, settings)
        self._shutdown = Shutdown()
        self._started: Any = None
        self._encoder: StartedEncoder | None = None
        self._error: BaseException | None = None
        self._watch: asyncio.Task[None] | None = None
        self._steps = Steps()
        self.loader = threading.Thread(target=self._load, name="jaxfold-load", daemon=True)

    async def run(self, host: str, port: int) -> int:
        """Serve until told to stop; the exit code.

        Raises:
            CliError: the port cannot be had.
            Exception: what the loader raised.
        """
        from jaxfold.api.server import BindError
        from jaxfold.api.server import serve as serve_app

        self._loop = asyncio.get_running_loop()
        try:
            code = await serve_app(self._app, host, port, on_listening=self._listening, shutdown=self._shutdown)
        except BindError as error:
            raise CliError(str(error)) from None
        finally:
            if self._watch is not None:
                self._watch.cancel()
            self._close()
        if self._error is not None:
            raise self._error
        return code

    def _close(self) -> None:
        """End the engines, then the other hosts; after an error nothing is waited for on several hosts."""
        if self._hosts is not None and self._error is not None:
            self._hosts.close(sentence(self._error))
            return
        if self._started is not None:
            self._started.close()
        if self._encoder is not None:
            self._encoder.service.engine.close()
        if self._hosts is not None:
            self._hosts.close("it was stopped while the model was loading" if self.loader.is_alive() else "")

    def _host_lost(self, reason: str) -> None:
        """Called by the thread that watches the other hosts."""
        from jaxfold.runtime.api import HostLostError

        end_soon(reason)
        self._error = HostLostError(reason)
        if self._started is not None:
            self._started.model.engine.abandon(reason)
        else:
            # Nobody was served yet. The loop may be closed already.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._shutdown.ask)

    def _listening(self, host: str, port: int) -> None:
        self._url = url_of(host, port)
        click.echo(f"listening on {self._url}; {self._url}/health tells when the model is ready")
        if hasattr(signal, "SIGHUP"):
            # Outside the main thread (tests) there are no signals to handle.
            with contextlib.suppress(ValueError, RuntimeError):
                self._loop.add_signal_handler(signal.SIGHUP, self._keys.reload)
        self.loader.start()

    def _load(self) -> None:
        """Runs in the loader's thread."""
        from jaxfold.cli.loading import model_file
        from jaxfold.cli.loading import start

        error: BaseException | None = None
        started = file = encoder = None
        try:
            with self._steps:
                if self._flags["embeddings"] is not None:
                    encoder = start_encoder(self._flags, self._steps)
                if self._model is not None:
                    hosts = self._gathering()
                    started = start(self._model, self._flags, self._steps, self._chat, self._template, hosts)
                    file = model_file(started.model.checkpoint)
        except BaseException as caught:
            error = caught
        if encoder is not None:
            # What was compiled for the chat model meanwhile does not count as late.
            encoder.service.engine.mark_ready()
        # The loop is closed if the server was stopped meanwhile; then nobody waits for the model.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loaded, started, file, encoder, error)
        # What loading has made stays; walking it again and again would hold up replies.
        gc.collect()
        gc.freeze()

    def _gathering(self) -> "Leader | None":
        """This host's side of the several that share the model."""
        if self._seat is not None:
            from jaxfold.runtime.hosts.group import Leader

            self._hosts = Leader(self._seat, self._host_lost)
        return self._hosts

    def _loaded(
        self, started: Any, file: "ModelFile | None", encoder: StartedEncoder | None, error: BaseException | None
    ) -> None:
        """Runs on the event loop: requests are admitted from here on, or the server ends."""
        from jaxfold.api.app import state_of

        self._started, self._encoder, self._error = started, encoder, self._error or error
        if self._error is not None:
            # There is nothing to drain, so the server's words about running replies would only hide the reason.
            logging.getLogger("jaxfold.api").setLevel(logging.WARNING)
            self._shutdown.ask()
            return
        state = state_of(self._app)
        if started is not None:
            chosen = {"default_sampling": started.sampling, "sampling_set": started.sampling_set, "model_file": file}
            state.settings = dataclasses.replace(state.settings, **chosen)
            state.service = started.service
        if encoder is not None:
            state.settings = dataclasses.replace(state.settings, encoder_file=encoder.file)
            state.encoder = encoder.service
        if state.draining:
            state.drain()
            return
        self._watch = self._loop.create_task(self._watch_engines(state))
        self._tell(state, started, encoder)
        sys.stdout.flush()

    def _tell(self, state: "ServerState", started: Any, encoder: StartedEncoder | None) -> None:
        """Say what is ready, and a first request for it."""
        settings, seconds = state.settings, self._steps.total()
        if encoder is not None:
            info = encoder.service.engine.info
            click.echo(
                f"{settings.encoder} is ready after {seconds:.1f} s at {self._url}/v1/embeddings "
                f"({info.dimensions} dimensions, context {info.context_length}, {info.compute_dtype})"
            )
        if started is None:
            click.echo(f"try it:\n  {embedding_line(self._url, settings.model)}")
            return
        info = started.model.engine.info
        click.echo(
            f"{settings.model} is ready after {seconds:.1f} s at {self._url}/v1 "
            f"(context {info.context_length}, {info.lanes} at a time, exactness level {info.exactness})"
        )
        page = f", or open {self._url} in a browser" if settings.webui else ""
        click.echo(f"try it{page}:\n  {curl_line(self._url, settings.model)}")

    async def _watch_engines(self, state: "ServerState") -> None:
        """End the process once an engine has given up, so that a supervisor starts a new one."""
        from jaxfold.runtime.api import HostLostError

        while state.healthy:
            await asyncio.sleep(HEALTH_PERIOD_S)
        if self._hosts is None:
            self._error = RuntimeError("the engine stopped after several failed steps in a row; see the log above")
        else:
            await asyncio.sleep(LINGER_S)
            self._error = self._error or HostLostError("a step failed, and the other hosts cannot go on from there")
        self._shutdown.ask()


def url_of(host: str, port: int) -> str:
    """The URL under which this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl_line(url: str, model: str) -> str:
    """A first request that can be pasted into a shell."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [question], "temperature": 0})
    return _curl(f"{url}/v1/chat/completions", body)


def embedding_line(url: str, model: str) -> str:
    """A first request to an encoder."""
    return _curl(f"{url}/v1/embeddings", json.dumps({"model": model, "input": "A man is eating food."}))


def _curl(url: str, body: str) -> str:
    # A quote inside single quotes ends them, so it is written as the four characters '\\''.
    quoted = body.replace("'", "'\\''")
    return f"curl {url} -H 'Content-Type: application/json' -d '{quoted}'"
