"""The page's and the uploads' options, and who wins where a request and the operator differ."""

from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.uploads.store import UploadSettings
from jaxfold.chat.service import ChatSettings
from jaxfold.chat.types import RequestError
from jaxfold.checkpoints.base import CheckpointError
from jaxfold.cli.loading import chat_settings
from jaxfold.cli.sampling_flags import chosen_sampling
from jaxfold.cli.sampling_flags import flag_sampling
from jaxfold.cli.serve import serve
from jaxfold.cli.webui_flags import puller
from jaxfold.cli.webui_flags import upload_settings
from tests.api.harness import CHAT
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.scripted_engine import ScriptedEngine


def flags(*arguments: str) -> dict[str, Any]:
    return dict(serve.make_context("serve", ["m", *arguments]).params)


def test_uploads_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path))
    assert upload_settings(flags()) == UploadSettings(folder=tmp_path / "uploads")
    assert upload_settings(flags("--no-uploads")) is None


def test_a_home_that_cannot_be_written_costs_the_uploads_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXFOLD_HOME", str(tmp_path / "file"))
    assert upload_settings(flags()) is None
    assert "no uploads" in capsys.readouterr().err


def test_every_upload_option_arrives(tmp_path: Path) -> None:
    given = flags(
        "--upload-dir", str(tmp_path), "--upload-max-mb", "1.5", "--upload-quota-mb", "10", "--upload-ttl-hours",
        "0.5", "--pdf-max-pages", "7",
    )  # fmt: skip
    assert upload_settings(given) == UploadSettings(
        folder=tmp_path, max_bytes=1_500_000, quota_bytes=10_000_000, ttl_s=1800.0, pdf_pages=7
    )


def test_what_is_set_is_known() -> None:
    config = {"temperature": 0.6, "repetition_penalty": 1.2}
    chosen = chosen_sampling(config, flags("--top-k", "5", "--repeat-last-n", "9"), Path("m"))
    assert chosen == {"temperature": 0.6, "repeat_penalty": 1.2, "top_k": 5, "penalty_last_n": 9}


def test_every_sampling_option_arrives() -> None:
    given = flags(
        "--temperature", "0.5", "--top-p", "0.9", "--top-k", "3", "--min-p", "0.1", "--repeat-penalty", "1.1",
        "--repeat-last-n", "8", "--presence-penalty", "0.25", "--frequency-penalty", "-1", "--seed", "7",
    )  # fmt: skip
    assert flag_sampling(given) == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1, "penalty_last_n": 8,
        "presence_penalty": 0.25, "frequency_penalty": -1, "seed": 7,
    }  # fmt: skip


def test_every_option_of_a_chat_arrives() -> None:
    given = flags(
        "--max-tokens", "9", "--reply-limit", "clamp", "--thinking-budget", "64", "--stop", "x", "--top-k", "3"
    )
    assert chat_settings(given) == ChatSettings(
        default_max_tokens=9, reply_limit="clamp", thinking_budget=64, stop=("x",), merge_stops=False
    )
    pinned = chat_settings(flags("--top-k", "3", "--sampling-precedence", "config"))
    assert (pinned.pinned_sampling, pinned.merge_stops) == ({"top_k": 3}, True)
    assert chat_settings(flags()) == ChatSettings(merge_stops=False)


@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/v1/completions"])
def test_what_the_operator_pins_wins(path: str) -> None:
    pinned = ChatSettings(stop=("w",), merge_stops=True, pinned_sampling={"temperature": 0.25, "top_k": 3})
    body = {"prompt": "hi"} if path == "/v1/completions" else chat_body()
    with running(ScriptedEngine(reply_ids("Hello, world. Bye.")), chat=pinned) as server:
        own = {"temperature": 1.5, "top_p": 0.5, "stop": ["l"]}
        server.post(path, {**body, **own})
        sampling = server.last_request().sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 3, 0.5)
        answer = server.post(CHAT, chat_body(stop=["Bye"])).json
        assert answer["choices"][0]["message"]["content"] == "Hello, "


def test_otherwise_a_request_wins() -> None:
    with running(ScriptedEngine(reply_ids("Hello, world. Bye.")), chat=ChatSettings(stop=("w",))) as server:
        texts = [
            server.post(CHAT, chat_body(**fields)).json["choices"][0]["message"]["content"]
            for fields in ({}, {"stop": ["Bye"]})
        ]
        assert texts == ["Hello, ", "Hello, world. "]


def test_only_the_catalogue_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(name: str, *, progress: Any) -> None:
        asked.append(name)
        progress("downloading")
        raise CheckpointError(name, "cannot be downloaded")

    monkeypatch.setattr("jaxfold.checkpoints.catalogue.resolve", resolve)
    steps: list[str] = []
    for name in ("evil.example/library/x", "org/model", "/etc/passwd", "../x.gguf"):
        with pytest.raises(RequestError, match="not in the catalogue"):
            puller(name, steps.append)
    assert not asked and not steps
    with pytest.raises(RequestError, match=r"smollm2:135m cannot be downloaded"):
        puller("SmolLM2:135m", steps.append)
    assert asked == ["smollm2:135m"] and steps[-1] == "downloading"
