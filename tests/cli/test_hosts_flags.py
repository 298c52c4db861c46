"""Several hosts on the command line: what does not go together is one sentence and exit code 2."""

from pathlib import Path

import pytest

from jaxfold.cli.errors import CliError
from jaxfold.cli.hosts_flags import address_of
from jaxfold.cli.hosts_flags import read_secret
from tests.cli.conftest import Loader
from tests.cli.conftest import Run

SECRET = "0123456789abcdef"
ALL = ("--coordinator", "10.0.0.1:7000", "--num-hosts", "2", "--host-id", "0")


@pytest.mark.parametrize(
    ("arguments", "secret", "reason"),
    [
        (ALL[:2], SECRET, "--num-hosts and --host-id must be given, too"),
        (ALL[2:], SECRET, "--coordinator must be given, too"),
        ((*ALL[:-1], "2"), SECRET, "--host-id 2 is none of 2 hosts"),
        (("--coordinator", "10.0.0.1", *ALL[2:]), SECRET, "give it as HOST:PORT"),
        (ALL, "", "several hosts need a secret"),
        (ALL, "short", "at least 16 characters"),
    ],
    ids=["no count", "no address", "number", "no port", "no secret", "short secret"],
)
def test_what_does_not_go_together_is_refused(
    run: Run, loader: Loader, model_file: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...], secret: str, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("JAXFOLD_HOSTS_SECRET", secret)
    outcome = run("serve", model_file, *arguments)
    assert outcome.code == 2 and not loader.options
    assert reason in outcome.err and outcome.err.count("\n") == 1
    assert not secret or secret not in outcome.err


def test_several_hosts_share_a_chat_model_alone(
    run: Run, loader: Loader, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXFOLD_HOSTS_SECRET", SECRET)
    outcome = run("serve", model_file, "--embeddings", "all-minilm:l6-v2", *ALL)
    assert outcome.code == 2 and "--embeddings from a process of its own" in outcome.err and not loader.options
    assert run("serve", *ALL).code == 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("head.local:1", ("head.local", 1)),
        ("[fe80::1]:65534", ("fe80::1", 65534)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    "text", ["", ":7000", "host", "host:", "host:0", "host:65535", "host:x", "fe80::1:7000", "[]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="HOST:PORT"):
        address_of(text)


def test_a_file_with_the_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o644)
    with pytest.raises(CliError, match="0600"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == SECRET.encode()
    with pytest.raises(CliError, match="No such file"):
        read_secret(tmp_path / "missing")
