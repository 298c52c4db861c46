"""Health and metrics: what operators, load balancers and dashboards read."""

from typing import Any

from quart import Blueprint
from quart import Response
from quart import request

from jaxfold.api.exchange.connection import exchange_of
from jaxfold.api.http.errors import unavailable
from jaxfold.api.http.wire import json_response
from jaxfold.api.operations.metrics import CONTENT_TYPE
from jaxfold.api.operations.metrics_embeddings import encoder_health
from jaxfold.api.state import ServerState


def health_routes(state: ServerState) -> Blueprint:
    """GET / and /health, /health/live, /health/ready, /metrics, each with and without /v1."""
    routes = Blueprint("health", __name__)

    @routes.get("/health")
    @routes.get("/v1/health")
    async def health() -> Response:
        full = _health(state)
        if state.settings.keys.required and exchange_of(request.scope).key is None:
            full = {"status": full["status"]}
        return json_response(full)

    if not state.settings.webui:
        routes.get("/")(health)

    @routes.get("/health/live")
    async def live() -> Response:
        if not state.healthy:
            raise unavailable("the engine has stopped")
        return json_response({"status": "ok"})

    @routes.get("/health/ready")
    async def ready() -> Response:
        if not state.ready:
            raise unavailable(_why_not_ready(state))
        return json_response({"status": "ok"})

    @routes.get("/metrics")
    @routes.get("/v1/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    return routes


def _why_not_ready(state: ServerState) -> str:
    if state.draining:
        return "the server is shutting down"
    return "the engine is not ready" if state.loaded else "the model is still loading"


def _health(state: ServerState) -> dict[str, Any]:
    """Totals move when a request ends, but `completion_tokens_total` holds the tokens of running replies too."""
    engine = state.engine()
    head: dict[str, Any] = {
        "status": "ok",
        "ok": True,
        "backend": "jaxfold",
        "ready": state.ready,
        "draining": state.draining,
        "model": state.settings.model,
        "model_ids": list(state.settings.all_ids),
    }
    encoder = state.encoder_engine()
    if encoder is not None:
        head["embeddings"] = encoder_health(state.settings.encoder_ids[0], encoder)
    if not state.healthy:
        head |= {"status": "error", "ok": False}
    elif not state.loaded:
        head |= {"status": "loading"}
    if engine is None:
        return head
    now, info = engine.snapshot(), engine.info
    return head | {
        "busy": now.requests_running + now.requests_waiting > 0,
        "requests_running": now.requests_running,
        "requests_waiting": now.requests_waiting,
        "requests_total": now.requests_total,
        "prompt_tokens_total": now.prompt_tokens_total,
        "completion_tokens_total": now.completion_tokens_total + now.generation_tokens_running,
        "prefill_seconds_total": round(now.prefill_seconds_total, 6),
        "decode_seconds_total": round(now.decode_seconds_total, 6),
        "cached_tokens_total": now.cached_tokens_total,
        "rounds_total": now.rounds_total,
        "drafted_total": now.drafted_total,
        "accepted_total": now.accepted_total,
        "drafting": info.drafting,
        "drafts": {
            proposer: {"drafted": drafted, "accepted": accepted}
            for proposer, (drafted, accepted) in sorted(now.drafts.items())
        },
        "preemptions_total": now.preemptions_total,
        "cancelled_total": now.cancelled_total,
        "failed_total": now.failed_total,
        "compiles_after_ready": now.compiles_after_ready,
        "streams": {"decoding": now.lanes_decoding, "prefilling": now.lanes_prefilling, "max": info.lanes},
        "pages": {"used": now.pages_used, "cached": now.pages_cached, "total": now.pages_total},
        "context_length": info.context_length,
        "exactness": info.exactness,
        "model_type": info.model_type,
        "platform": info.platform,
        "tp": info.tp,
        "weight_dtype": info.weight_dtype,
        "kv_dtype": info.kv_dtype,
        "weight_bytes": info.weight_bytes,
        "cache_bytes": info.cache_bytes,
    }
