"""The flags of the store of responses, and the defaults that differ by protocol."""

from pathlib import Path
from typing import Any

import click
import pytest

from jaxfold.api.responses.store import StoreSettings
from jaxfold.cli.errors import CliError
from jaxfold.cli.serve import serve
from jaxfold.cli.serve_flags import store_settings
from tests.cli.conftest import Loader
from tests.cli.conftest import Run
from tests.cli.test_serve import call
from tests.cli.test_serve import free_port
from tests.cli.test_serve import serve_with
from tests.cli.test_serve import wait_ready

LONG = 10**6


def settings_of(*arguments: str) -> StoreSettings:
    return store_settings(serve.make_context("serve", ["m", *arguments]).params)


def test_defaults_are_those_of_the_store() -> None:
    assert settings_of() == StoreSettings()


def test_limits() -> None:
    given = settings_of("--responses-max", "5", "--responses-mb", "0.5", "--responses-minutes", "90")
    assert (given.max_entries, given.max_bytes, given.ttl_s) == (5, 1 << 19, 5400)


@pytest.mark.parametrize("argument", ["--responses-max=-1", "--responses-mb=0", "--responses-minutes=nan"])
def test_limits_that_are_none(argument: str) -> None:
    with pytest.raises(click.BadParameter):
        settings_of(argument)


@pytest.mark.parametrize("url", ["localhost:6379", "redis://:s3cret@127.0.0.1:1/0"])
def test_a_redis_server_that_is_not_there_is_a_sentence(url: str) -> None:
    with pytest.raises(CliError, match="--redis-url: ") as caught:
        settings_of("--redis-url", url)
    assert "s3cret" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


def test_a_redis_server_that_is_not_there_ends_the_command(run: Run) -> None:
    outcome = run("serve", "m", "--redis-url", "redis://127.0.0.1:1/0")
    assert outcome.code == 2 and "Redis" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("flags", "messages_status", "limited"),
    [((), 200, False), (("--reply-limit", "reject"), 400, False), (("--max-tokens", "7"), 200, True)],
)
def test_limits_differ_by_protocol_unless_a_flag_says_so(
    run: Run, loader: Loader, model_file: Path, flags: tuple[str, ...], messages_status: int, limited: bool
) -> None:
    port = free_port()
    answers: list[tuple[int, Any]] = []

    def client() -> None:
        wait_ready(port)
        turn = [{"role": "user", "content": "hi"}]
        answers.append(call(port, "POST", "/v1/messages", {"messages": turn, "max_tokens": LONG}))
        answers.append(call(port, "POST", "/v1/chat/completions", {"messages": turn, "max_tokens": LONG}))
        answers.append(call(port, "POST", "/v1/responses", {"input": "hi"}))

    serve_with(run, client, model_file, "--port", port, *flags)
    assert [status for status, _ in answers] == [messages_status, 400, 200]
    request = loader.engines[0].requests[-1]
    assert (request.max_tokens == 7) == limited
    if not limited:
        assert request.max_tokens == loader.engines[0].context_length - len(request.prompt_ids)
