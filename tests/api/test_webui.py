"""The page's protocol: frames, sessions, the retry without thinking, attachments, the model and the load."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxfold.api.uploads.store import UploadSettings
from jaxfold.api.webui.replies import NO_ANSWER
from jaxfold.api.webui.sessions import Sessions
from jaxfold.runtime.api import EngineRequest
from jaxfold.runtime.api import QueueFullError
from tests.api.conftest import REPLY
from tests.api.harness import MODEL
from tests.api.harness import THINKING
from tests.api.harness import TIMEOUT_S
from tests.api.harness import Server
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.test_ollama import refused
from tests.byte_tokenizer import ByteTokenizer
from tests.scripted_engine import ScriptedEngine

PAGE = "/api/chat"
DONE_KEYS = {
    "done", "tokenCount", "elapsed", "tokPerSec", "aborted", "truncated", "error", "sessionId", "promptTokens",
    "kvReusedTokens", "kvReusePercent",
}  # fmt: skip


@pytest.fixture(scope="module")
def thinking() -> Iterator[Server]:
    with running(ScriptedEngine(), template=THINKING) as server:
        yield server


def turn(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def frames(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The frames of a whole stream, after a check of its bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", PAGE, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read().decode("ascii")
    finally:
        connection.close()
    assert response.status == 200, raw
    assert response.getheader("Content-Type") == "text/event-stream"
    *events, rest = raw.split("\n\n")
    assert rest == "" and all(event.startswith("data: ") and "\n" not in event for event in events)
    found = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [frame.get("done", False) for frame in found] == [False] * (len(found) - 1) + [True]
    assert set(found[-1]) == DONE_KEYS
    return found


def text_of(found: list[dict[str, Any]], key: str = "token") -> str:
    return "".join(frame.get(key, "") for frame in found)


def prompt_of(server: Server) -> str:
    return ByteTokenizer().decode(server.last_request().prompt_ids, skip_special=False)


def test_a_turn(server: Server) -> None:
    server.engine.cached_tokens = 10
    found = frames(server, turn(maxTokens=100, sessionId=None, newChat=False, think=False, tools=[]))
    assert text_of(found) == REPLY
    assert all(set(frame) == {"token"} for frame in found[:-1])
    done = found[-1]
    assert done["tokenCount"] == len(reply_ids(REPLY))
    assert done["promptTokens"] == len(server.last_request().prompt_ids)
    assert done["kvReusedTokens"] == 10
    assert done["kvReusePercent"] == round(1000 / done["promptTokens"], 1)
    assert done["tokPerSec"] == pytest.approx(done["tokenCount"] / done["elapsed"], rel=0.5)
    assert (done["aborted"], done["truncated"], done["error"], done["sessionId"]) == (False, False, None, "__default__")


def test_names_in_both_cases(server: Server) -> None:
    camel = {"topK": 5, "topP": 0.5, "repetitionPenalty": 1.5, "repeatLastN": 3, "minP": 0.1, "maxTokens": 7}
    snake = {"top_k": 5, "top_p": 0.5, "repeat_penalty": 1.5, "repeat_last_n": 3, "min_p": 0.1, "max_tokens": 7}
    seen = []
    for fields in (camel, snake):
        frames(server, turn(temperature=0.25, seed=4, **fields))
        seen.append((server.last_request().sampling, server.last_request().max_tokens))
    assert seen[0] == seen[1] and seen[0][1] == 7
    frames(server, turn(maxTokens=7, max_tokens=9))
    assert server.last_request().max_tokens == 7


def test_a_cut_reply_is_marked(server: Server) -> None:
    done = frames(server, turn(maxTokens=3))[-1]
    assert done["truncated"] is True and done["tokenCount"] == 3


def test_thinking_comes_apart(thinking: Server) -> None:
    thinking.engine.script = reply_ids("<think>\nHm.\n</think>\n\nYes.")
    found = frames(thinking, turn(think=True))
    assert (text_of(found, "thinking"), text_of(found)) == ("Hm.", "Yes.")
    frames(thinking, turn())
    assert prompt_of(thinking).endswith("</think>\n\n")


def test_a_turn_that_only_thought_is_tried_again_without(thinking: Server) -> None:
    def script(request: EngineRequest) -> list[int]:
        off = ByteTokenizer().decode(request.prompt_ids, skip_special=False).endswith("</think>\n\n")
        return reply_ids("Yes." if off else "<think>\nHm, well, let me see")

    thinking.engine.script = script
    thinking.engine.requests.clear()
    found = frames(thinking, turn(think=True, maxTokens=12))
    assert len(thinking.engine.requests) == 2
    assert text_of(found, "thinking").startswith("Hm") and text_of(found) == "Yes."
    done = found[-1]
    assert done["tokenCount"] == 12 + len(reply_ids("Yes."))
    assert done["truncated"] is False


def test_it_is_tried_again_once(thinking: Server) -> None:
    thinking.engine.script = reply_ids("<think>\nHm, well, let me see")
    thinking.engine.requests.clear()
    found = frames(thinking, turn(think=True, maxTokens=8))
    assert len(thinking.engine.requests) == 2
    assert text_of(found)


def test_an_empty_turn_is_visible(server: Server) -> None:
    server.engine.script = reply_ids("")
    assert text_of(frames(server, turn())) == NO_ANSWER
    assert len(server.engine.requests) == 1


def test_a_failure_is_in_the_done_frame(server: Server) -> None:
    server.engine.fail_after = 2
    done = frames(server, turn())[-1]
    assert done["error"] and done["aborted"] is False


def test_tools_reach_the_prompt(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    frames(server, turn(tools=tools))
    assert '"name": "add"' in prompt_of(server)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"backend": "cpu"}, "backend"),
        ({"messages": None}, "messages is required"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "imagePaths": ["x.png"]}]}, "previously uploaded"),
        ({"messages": [{"role": "user", "content": "a", "textFilePaths": ["../../secret"]}]}, "previously uploaded"),
        ({"messages": [{"role": "user", "content": "a", "imagePaths": "x"}]}, "imagePaths"),
        ({"messages": [{"role": "user", "content": "a", "attachments": [{"file": "x"}]}]}, "previously uploaded"),
        ({"messages": [{"role": "user", "content": "a", "attachments": ["x"]}]}, "attachments[0]"),
        ({"skills": ["pdf"]}, "skills"),
        ({"think": "yes"}, "think"),
        ({"temperature": "hot"}, "temperature"),
        ({"maxTokens": -5}, "max_tokens"),
        ({"newChat": 1}, "newChat"),
        ({"sessionId": 5}, "sessionId"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ],
)
def test_turns_that_are_wrong(server: Server, fields: dict[str, Any], word: str) -> None:
    assert word in refused(server.post(PAGE, {**turn(), **fields}))
    assert not server.engine.requests


def test_null_lists_of_an_old_chat(server: Server) -> None:
    names = ("imagePaths", "audioPaths", "textFilePaths", "textFileNames", "attachments", "tool_calls", "isVideo")
    old = {"role": "user", "content": "hi", **dict.fromkeys(names)}
    assert text_of(frames(server, {"messages": [old]})) == REPLY


def test_a_full_queue_before_the_first_frame(server: Server) -> None:
    server.engine.refuse = QueueFullError("the queue is full")
    refused(server.post(PAGE, turn()), 503)


def test_sessions(server: Server) -> None:
    made = server.post("/api/sessions", {}).json
    assert set(made) == {"sessionId", "createdAt"}
    session = made["sessionId"]
    assert frames(server, turn(sessionId=session, newChat=True))[-1]["sessionId"] == session
    assert server.request("DELETE", f"/api/sessions/{session}").json == {"ok": True, "sessionId": session}
    assert "has been disposed" in refused(server.post(PAGE, turn(sessionId=session)), 404)
    gone = server.request("DELETE", f"/api/sessions/{session}")
    assert gone.status == 404 and gone.json == {"ok": False, "error": f"Session '{session}' not found."}
    default = server.request("DELETE", "/api/sessions/__default__")
    assert default.status == 400 and default.json == {"ok": False, "error": "Cannot dispose the default session."}


def test_sessions_are_bounded() -> None:
    sessions = Sessions(limit=2)
    first, second = sessions.create(), sessions.create()
    sessions.use(first.id)
    sessions.create()
    assert sessions.use(first.id) is first
    with pytest.raises(Exception, match="not found"):
        sessions.use(second.id)


def test_models(server: Server) -> None:
    models = server.get("/api/models").json
    assert models["models"] == [MODEL] and models["loaded"] == MODEL
    assert models["contextTokens"] == server.engine.context_length
    assert models["supportedBackends"] == [models["loadedBackend"]] == ["cpu"]
    assert (models["video"], models["skills"], models["visionReady"], models["mmProjModels"]) == (None, None, False, [])
    assert models["defaultMaxTokens"] == 20000
    assert models["sampling"]["temperature"] == 0.8


@pytest.mark.parametrize("fields", [{}, {"backend": "CPU"}, {"mmproj": "none"}, {"mmproj": ""}, {"mmproj": None}])
def test_loading_the_served_model(server: Server, fields: dict[str, Any]) -> None:
    answer = server.post("/api/models/load", {"model": MODEL.upper(), **fields})
    assert answer.json == {"ok": True, "model": MODEL, "loadedMmProj": None, "architecture": "scripted"}


@pytest.mark.parametrize(
    "body", [{}, {"model": "other.gguf"}, {"model": MODEL, "backend": "mlx"}, {"model": MODEL, "mmproj": "x"}, []]
)
def test_loading_anything_else(server: Server, body: Any) -> None:
    answer = server.post("/api/models/load", body)
    assert answer.status == 400
    assert answer.json["ok"] is False and answer.json["error"]


def test_queue_status(server: Server) -> None:
    before = server.get("/api/queue/status").json
    frames(server, turn())
    after = server.get("/api/queue/status").json
    assert set(after) == {"busy", "pending_requests", "total_processed"}
    assert after["total_processed"] == before["total_processed"] + 1
    assert after["busy"] is False and after["pending_requests"] == 0


def test_a_file_that_the_server_keeps_is_read_into_the_message(tmp_path: Path) -> None:
    name = f"{'0' * 32}.csv"
    with running(ScriptedEngine(reply_ids("ok")), uploads=UploadSettings(folder=tmp_path)) as server:
        (tmp_path / name).write_text("a,b\n1,2\n")
        attachment = {"file": name, "fileName": "table.csv", "mediaType": "text", "fileBacked": True}
        message = {"role": "user", "content": "Sum?", "attachments": [attachment], "textFilePaths": [name]}
        frames(server, {"messages": [message]})
        assert "[File: table.csv]\na,b\n1,2\n\n[End of file]\nSum?" in prompt_of(server)
        # A path inside the folder is accepted, since older pages sent those.
        frames(server, {"messages": [message | {"textFilePaths": [str(tmp_path / name)]}]})
        image = f"{'1' * 32}.png"
        (tmp_path / image).write_bytes(b"\x89PNG\r\n\x1a\n")
        for field in ("imagePaths", "audioPaths"):
            assert "only text" in refused(server.post(PAGE, {"messages": [{**message, field: [image]}]}))
