"""The metrics page: every family under its names, counters that move with requests, and nothing that is not counted."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxfold.api.access.admission import route_name
from jaxfold.api.access.keys import KeyRing
from jaxfold.api.access.keys import keys_of
from jaxfold.api.app import create_app
from jaxfold.api.app import state_of
from jaxfold.api.operations.metrics import MAX_SERIES
from jaxfold.api.settings import ApiSettings
from jaxfold.runtime.api import EngineSnapshot
from tests.api.harness import CHAT
from tests.api.harness import Server
from tests.api.harness import chat_body
from tests.api.harness import reply_ids
from tests.api.harness import running
from tests.api.harness import wait_until
from tests.api.scrape import samples
from tests.api.scrape import value
from tests.api.sse import Stream
from tests.scripted_engine import ScriptedEngine

TWINS = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "mtp_drafted_total": "spec_decode_num_draft_tokens_total",
    "mtp_accepted_total": "spec_decode_num_accepted_tokens_total",
    "request_latency_seconds": "e2e_request_latency_seconds",
    "request_decode_seconds": "request_decode_time_seconds",
    "request_prefill_seconds": "request_prefill_time_seconds",
    "request_queue_seconds": "request_queue_time_seconds",
}
BUCKETS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, math.inf]
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "jaxfold.json"


class DraftingEngine(ScriptedEngine):
    """One that says it has drafted."""

    def snapshot(self) -> EngineSnapshot:
        drafts = {"replay": (2, 2), "copy": (10, 5)}
        return dataclasses.replace(super().snapshot(), drafted_total=12, accepted_total=7, drafts=drafts)


@pytest.fixture
def fresh() -> Iterator[Server]:
    with running(DraftingEngine(reply_ids("hello"))) as server:
        yield server


def test_every_twin_has_the_same_samples(fresh: Server) -> None:
    fresh.works()
    found = samples(fresh)
    for name, twin in TWINS.items():
        suffixes = ("_bucket", "_sum", "_count") if name.endswith("_seconds") else ("",)
        for suffix in suffixes:
            assert found[name + suffix] == found[twin + suffix]
    pools = [(labels["pool"], part) for labels, part in found["kv_cache_usage_ratio"]]
    assert pools == [(labels["stream"], part) for labels, part in found["kv_cache_usage_perc"]]
    assert pools[0][0] == "all"


def test_counters_move_with_requests(fresh: Server) -> None:
    fresh.engine.cached_tokens = 3
    for _ in range(3):
        fresh.works()
    health = fresh.get("/health").json
    assert value(fresh, "generation_tokens_total") == health["completion_tokens_total"] == 12
    assert value(fresh, "prompt_tokens_total") == health["prompt_tokens_total"]
    assert value(fresh, "prompt_tokens_cached_total") == 9
    assert value(fresh, "requests_running_max") == 8
    assert value(fresh, "decode_rounds_total") == health["rounds_total"]
    assert value(fresh, "client_disconnections_total") == 0
    assert value(fresh, "preemptions_total") == 0
    for name in ("request_latency_seconds", "time_to_first_token_seconds", "request_decode_seconds"):
        assert value(fresh, f"{name}_count") == 3
        buckets = samples(fresh)[f"{name}_bucket"]
        assert [float(labels["le"]) for labels, _ in buckets] == BUCKETS
        counts = [count for _, count in buckets]
        assert counts == sorted(counts) and counts[-1] == 3


def test_cancelled_requests_are_no_samples(fresh: Server) -> None:
    fresh.engine.hang = True
    fresh.engine.script = ()
    stream = Stream(fresh.port, CHAT, chat_body())
    stream.close()
    assert fresh.engine.wait_idle()
    fresh.engine.hang = False
    wait_until(lambda: value(fresh, "client_disconnections_total") == 1)
    assert value(fresh, "request_latency_seconds_count") == 0


def test_two_applications_share_no_metrics() -> None:
    first, second = (create_app(None, ApiSettings(model="m")) for _ in range(2))
    assert first.extensions["jaxfold"].metrics is not second.extensions["jaxfold"].metrics
    first.extensions["jaxfold"].metrics.client_disconnections = 5
    assert b"disconnections_total 0.0" in second.extensions["jaxfold"].metrics.page()


def test_drafts_are_counted_by_proposer(fresh: Server) -> None:
    found = samples(fresh)
    assert found["draft_tokens_drafted_total"] == [({"proposer": "copy"}, 10.0), ({"proposer": "replay"}, 2.0)]
    assert found["draft_tokens_accepted_total"] == [({"proposer": "copy"}, 5.0), ({"proposer": "replay"}, 2.0)]
    assert value(fresh, "mtp_drafted_total") == 12
    health = fresh.get("/health").json
    assert health["drafts"] == {"copy": {"drafted": 10, "accepted": 5}, "replay": {"drafted": 2, "accepted": 2}}
    assert (health["drafted_total"], health["accepted_total"], health["drafting"]) == (12, 7, False)


def test_draft_counters_are_left_out_until_something_drafts() -> None:
    with running(ScriptedEngine(reply_ids("hello"))) as server:
        server.works()
        names = set(samples(server))
    drafted = {name for pair in TWINS.items() for name in pair if "draft" in name or "accepted" in name}
    assert len(drafted) == 4
    assert not drafted & names
    assert not [name for name in names if name.startswith("draft_")]


def test_without_an_engine_there_is_nothing_of_it() -> None:
    with running(ScriptedEngine()) as server:
        server.state.service = None
        names = set(samples(server))
    assert "client_disconnections_total" in names
    assert not {name for name in names if name.startswith(("kv_cache", "requests_running", "generation_tokens"))}


def test_answers_are_counted_by_route_and_status(fresh: Server) -> None:
    for path in (CHAT, "/chat/completions", "/openai/v1/chat/completions"):
        assert fresh.post(path, chat_body()).status == 200
    assert fresh.post(CHAT, {}).status == 400
    assert fresh.get(CHAT).status == 405
    for path in ("/nope/1", "/nope/2"):
        assert fresh.get(path).status == 404
    fresh.get("/v1/models/a/b")
    fresh.get("/models/c")
    found = {(labels["route"], labels["status"]): number for labels, number in samples(fresh)["requests_total"]}
    assert found == {
        ("/chat/completions", "200"): 3,
        ("/chat/completions", "400"): 1,
        ("unknown", "404"): 2,
        ("unknown", "405"): 1,
        ("/models/{model_id}", "404"): 2,
    }


def test_answers_are_counted_by_key_label() -> None:
    keys = KeyRing(keys_of(["first", "second"], "cli"))
    with running(ScriptedEngine(reply_ids("hi")), keys=keys, metrics_open=True) as server:
        for headers in ({"Authorization": "Bearer second"}, {"x-api-key": "wrong"}, {}):
            server.request("POST", CHAT, chat_body(), headers)
        found = [(labels, number) for labels, number in samples(server)["requests_total"]]
    assert found == [
        ({"route": "/chat/completions", "status": "200", "key": "cli-2"}, 1),
        ({"route": "/chat/completions", "status": "401", "key": "unauthenticated"}, 2),
    ]


def test_the_number_of_series_is_bounded() -> None:
    metrics = state_of(create_app(None, ApiSettings(model="m"))).metrics
    for number in range(2 * MAX_SERIES):
        metrics.count("/chat/completions", 200, f"user-{number}")
    page = metrics.page().decode()
    assert page.count("jaxfold:requests_total{") == MAX_SERIES + 1
    assert f'key="other",route="/chat/completions",status="200"}} {float(MAX_SERIES)}' in page or (
        f'route="/chat/completions",status="200",key="other"}} {float(MAX_SERIES)}' in page
    )


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (None, "unknown"),
        ("/", "/"),
        ("/v1/health", "/health"),
        ("/<path:prefix>/chat/completions", "/chat/completions"),
        ("/v1/models/<path:model_id>", "/models/{model_id}"),
        ("/api/blobs/<digest>", "/api/blobs/{digest}"),
    ],
)
def test_route_names(rule: str | None, name: str) -> None:
    assert route_name(rule) == name


def test_the_dashboard_asks_only_for_what_there_is(fresh: Server) -> None:
    """Every panel has a query, and every name in a query is a sample of the page of a server that has served."""
    fresh.works()
    names = set(samples(fresh))
    board = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert all(panel["targets"] for panel in panels) and len(panels) >= 10
    asked = {name for query in queries for name in re.findall(r"jaxfold:([a-z0-9_]+)", query)}
    assert asked <= names
    wanted = {"requests_total", "requests_running", "requests_waiting", "generation_tokens_total", "mtp_accepted_total"}
    assert wanted <= asked
    assert len({panel["id"] for panel in panels}) == len(panels)
