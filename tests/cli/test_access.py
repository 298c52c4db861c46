"""Keys, names and origins from the command line: sources that add up, a file replaced by SIGHUP, and warnings."""

import http.client
import os
import signal
import time
from pathlib import Path

import click
import pytest

from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.origins import BrowserRules
from jaxfold.cli.errors import CliError
from jaxfold.cli.serve import serve
from jaxfold.cli.serve_flags import browser_rules
from jaxfold.cli.serve_flags import key_ring
from tests.cli.conftest import Loader
from tests.cli.conftest import Run
from tests.cli.test_serve import WAIT_S
from tests.cli.test_serve import free_port
from tests.cli.test_serve import serve_with
from tests.cli.test_serve import wait_ready

SECRET = "sk-very-secret"


def context(*arguments: str) -> click.Context:
    return serve.make_context("serve", ["m", *arguments])


def ring_of(*arguments: str) -> KeyRing:
    ctx = context(*arguments)
    return key_ring(ctx, ctx.params)


def rules_of(host: str, *arguments: str) -> BrowserRules:
    return browser_rules(host, context(*arguments).params)


def label(ring: KeyRing, key: str) -> str | None:
    return ring.label_of([(b"authorization", f"Bearer {key}".encode())])


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    new, path = folder / "keys.new", folder / "keys"
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)
    return path


def test_without_keys_the_server_is_open() -> None:
    assert not ring_of().required


def test_the_sources_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXFOLD_API_KEY", " k3 ,k4,")
    path = key_file(tmp_path, "alice: k5\nk6\n")
    ring = ring_of("--api-key", "k1", "--api-key", "k2", "--api-key-file", str(path))
    labels = {key: label(ring, key) for key in ("k1", "k2", "k3", "k4", "k5", "k6", "k7")}
    assert labels == {"k1": "cli-1", "k2": "cli-2", "k3": "env-1", "k4": "env-2", "k5": "alice", "k6": "file-2",
                      "k7": None}  # fmt: skip


def test_the_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXFOLD_API_KEY", "k1,k2")
    ring = ring_of()
    assert (label(ring, "k1"), label(ring, "k2"), label(ring, "k1,k2")) == ("env-1", "env-2", None)
    monkeypatch.setenv("JAXFOLD_API_KEY", "")
    assert not ring_of().required


@pytest.mark.parametrize("text", [",", " , ", f"{SECRET} x", "\u00e9"])
def test_a_variable_that_holds_no_key_does_not_open_the_server(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("JAXFOLD_API_KEY", text)
    with pytest.raises(CliError, match="JAXFOLD_API_KEY") as caught:
        ring_of()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", f"{SECRET} x"])
def test_flags_that_are_no_keys(text: str) -> None:
    with pytest.raises(CliError, match="--api-key") as caught:
        ring_of("--api-key", text)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), (SECRET, 0o644), (f"x: {SECRET} y", 0o600)])
def test_a_file_that_cannot_be_used_ends_the_start(
    run: Run, loader: Loader, model_file: Path, tmp_path: Path, text: str, mode: int
) -> None:
    outcome = run("serve", model_file, "--port", 0, "--api-key-file", key_file(tmp_path, text, mode))
    assert outcome.code != 0 and "the key file" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert SECRET not in outcome.err + outcome.out
    assert not loader.options


@pytest.mark.parametrize("keyed", [False, True])
def test_a_public_address_is_warned_about_only_without_keys(
    run: Run, loader: Loader, model_file: Path, keyed: bool
) -> None:
    port = free_port()
    flags = ["--api-key", SECRET] if keyed else []
    outcome = serve_with(run, lambda: wait_ready(port), model_file, "--host", "0.0.0.0", "--port", port, *flags)
    assert outcome.code == 0
    assert ("no key protects it" in outcome.err) is not keyed
    assert SECRET not in outcome.err + outcome.out


def test_sighup_reads_the_key_file_again(run: Run, loader: Loader, model_file: Path, tmp_path: Path) -> None:
    path = key_file(tmp_path, "old\n")
    port = free_port()

    def status(key: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("GET", "/v1/models", headers={"x-api-key": key})
        with connection.getresponse() as response:
            response.read()
            code = response.status
        connection.close()
        return code

    def client() -> None:
        wait_ready(port)
        assert (status("old"), status("new")) == (200, 401)
        key_file(tmp_path, "new\n")
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + WAIT_S
        while (status("old"), status("new")) != (401, 200):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    outcome = serve_with(run, client, model_file, "--port", port, "--api-key-file", path)
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("host", "arguments", "hosts"),
    [
        ("127.0.0.1", [], ("127.0.0.1",)),
        ("::1", ["--allowed-hosts", "a.example:80, B.example"], ("a.example", "b.example", "::1")),
        ("0.0.0.0", [], None),
        ("0.0.0.0", ["--allowed-hosts", "a.example"], ("a.example", "0.0.0.0")),
    ],
)
def test_hosts(host: str, arguments: list[str], hosts: tuple[str, ...] | None) -> None:
    rules = rules_of(host, *arguments)
    assert rules.hosts == hosts
    assert rules.origins == ("loopback",)


def test_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules_of("::", "--allowed-origins", "https://A.example/, null").origins == ("https://a.example", "null")
    monkeypatch.setenv("JAXFOLD_ALLOWED_ORIGINS", "loopback,http://b.example:80")
    assert rules_of("::").origins == ("loopback", "http://b.example")


@pytest.mark.parametrize(
    "arguments",
    [["--allowed-origins", "a.example"], ["--allowed-origins", "https://a/b"], ["--allowed-hosts", "http://a"]],
)
def test_what_is_no_origin_or_host(arguments: list[str]) -> None:
    with pytest.raises(CliError, match=arguments[0]):
        rules_of("127.0.0.1", *arguments)
