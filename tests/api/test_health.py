"""Health and models: what they say, and that it agrees with what was served."""

from collections.abc import Iterator

import pytest

from tests.api.harness import CHAT
from tests.api.harness import MODEL
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.scrape import samples
from tests.api.sse import Stream
from tests.scripted_engine import ScriptedEngine


@pytest.fixture
def fresh() -> Iterator[Server]:
    with running(ScriptedEngine(reply_ids("hello")), aliases=("other",)) as server:
        yield server


@pytest.mark.parametrize("path", ["/", "/health", "/v1/health", "/health/", "/health?reset=1", "//health"])
def test_health(fresh: Server, path: str) -> None:
    fresh.works()
    answer = fresh.get(path)
    assert answer.status == 200
    health = answer.json
    assert (health["status"], health["ok"], health["ready"], health["backend"]) == ("ok", True, True, "jaxfold")
    assert (health["model"], health["model_ids"]) == (MODEL, [MODEL, "other"])
    assert (health["requests_total"], health["requests_running"], health["busy"]) == (1, 0, False)
    assert health["completion_tokens_total"] == 4
    assert health["streams"] == {"decoding": 0, "prefilling": 0, "max": 8}
    assert health["context_length"] == fresh.engine.context_length
    assert health["exactness"] == "A"


def test_head_has_no_body(fresh: Server) -> None:
    for path in ("/", "/health"):
        answer = fresh.request("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")


def test_live_replies_are_counted(fresh: Server) -> None:
    fresh.engine.hang = True
    fresh.engine.script = [ord("x")] * 5
    stream = Stream(fresh.port, CHAT, chat_body())
    received = stream.events()
    wait_until(lambda: fresh.get("/health").json["completion_tokens_total"] == 5)
    next(received)
    health = fresh.get("/health").json
    assert (health["requests_running"], health["requests_total"], health["busy"]) == (1, 0, True)
    found = samples(fresh)
    assert found["requests_running"] == [({}, 1.0)]
    assert found["generation_tokens_running"] == [({}, 5.0)]
    assert found["generation_tokens_total"] == [({}, 0.0)]
    stream.close()
    assert fresh.engine.wait_idle()


def test_ready_and_live(fresh: Server) -> None:
    assert fresh.get("/health/ready").status == fresh.get("/health/live").status == 200
    fresh.engine.ready = False
    answer = fresh.get("/health/ready")
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.error["type"] == "server_error"
    assert fresh.get("/health/live").status == 200
    assert fresh.get("/health").json["ready"] is False
    assert fresh.post(CHAT, chat_body()).status == 503


def test_a_dead_engine_is_not_live(fresh: Server) -> None:
    fresh.engine.close()
    assert fresh.get("/health/live").status == 503
    health = fresh.get("/health")
    assert (health.status, health.json["status"], health.json["ok"]) == (200, "error", False)


def test_while_the_model_loads() -> None:
    engine = ScriptedEngine(reply_ids("ok"))
    with running(engine) as server:
        service, server.state.service = server.state.service, None
        assert server.get("/health/live").status == 200
        assert server.get("/health/ready").status == 503
        assert (server.get("/health").json["status"], server.get("/health").json["ready"]) == ("loading", False)
        assert server.get("/v1/models").json["data"][0]["max_model_len"] is None
        assert server.get("/metrics").status == 200
        answer = server.post(CHAT, chat_body())
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        server.state.service = service
        assert server.get("/health/ready").status == 200
        server.works()


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/openai/v1/models", "/v1/models/", "/v1/models?x=1"])
def test_models(fresh: Server, path: str) -> None:
    body = fresh.get(path).json
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == [MODEL, "other"]
    for model in body["data"]:
        assert (model["object"], model["owned_by"]) == ("model", "jaxfold")
        assert model["max_model_len"] == fresh.engine.context_length
        assert isinstance(model["created"], int)
        assert fresh.get(f"/v1/models/{model['id']}").json == model
        assert fresh.get(f"/models/{model['id']}").json == model


def test_a_model_by_its_other_names(fresh: Server) -> None:
    for name, found in ((MODEL.upper(), MODEL), ("Other:latest", "other")):
        assert fresh.get(f"/v1/models/{name}").json["id"] == found


VERSION = {"anthropic-version": "2023-06-01"}


def test_models_in_anthropics_form(fresh: Server) -> None:
    body = fresh.request("GET", "/v1/models?limit=1000", headers=VERSION).json
    assert [model["id"] for model in body["data"]] == [MODEL, "other"]
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, MODEL, "other")
    for model in body["data"]:
        assert (model["type"], model["lifecycle"], model["display_name"]) == ("model", "active", model["id"])
        assert model["max_input_tokens"] == fresh.engine.context_length
        for path in ("/models", "/v1/models", "/anthropic/v1/models"):
            assert fresh.request("GET", f"{path}/{model['id']}", headers=VERSION).json == model


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("limit=1", [MODEL], True),
        ("after_id=scripted", ["other"], False),
        ("after_id=other", [], False),
        ("before_id=other&limit=1", [MODEL], False),
        ("before_id=scripted", [], False),
    ],
)
def test_pages_of_models(fresh: Server, query: str, ids: list[str], more: bool) -> None:
    body = fresh.request("GET", f"/v1/models?{query}", headers=VERSION).json
    assert ([model["id"] for model in body["data"]], body["has_more"]) == (ids, more)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?limit=0", 400), ("?limit=x", 400), ("?limit=1001", 400), ("?after_id=nope", 400),
        ("?after_id=other&before_id=other", 400), ("/nope", 404),
    ],
)  # fmt: skip
def test_refusals_of_models_in_anthropics_form(fresh: Server, query: str, status: int) -> None:
    answer = fresh.request("GET", f"/v1/models{query}", headers=VERSION)
    assert answer.status == status
    assert set(answer.json) == {"type", "error"} and set(answer.json["error"]) == {"type", "message"}
    # Without the header the query means nothing, as ever.
    assert fresh.get(f"/v1/models{query}").status == (404 if status == 404 else 200)


def test_a_model_id_with_slashes() -> None:
    with running(ScriptedEngine(), model="org/name:tag") as server:
        assert server.get("/v1/models/org/name:tag").json["id"] == "org/name:tag"
        assert server.get("/v1/models/org%2Fname:tag").json["id"] == "org/name:tag"


def test_an_unknown_model(fresh: Server) -> None:
    answer = fresh.get("/v1/models/nope")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert "nope" in answer.error["message"]


def test_quiet_paths_are_not_logged(fresh: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jaxfold.access")
    for path in ("/health", "/v1/metrics", "/health/ready", "/v1/models"):
        fresh.get(path)
    fresh.get("/nope%C3%A9%0A")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "jaxfold.access"]

    wait_until(lambda: len(lines()) == 2)  # a line is written when its exchange is over, after the response
    assert [line.split()[:3] for line in lines()] == [["GET", "/v1/models", "200"], ["GET", "/nope\\xe9\\n", "404"]]
