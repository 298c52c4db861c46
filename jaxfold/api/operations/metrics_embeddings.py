"""What /metrics and /health say of the encoder."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric

from jaxfold.runtime.encoders.api import EncoderEngine
from jaxfold.runtime.encoders.api import EncoderSnapshot


def encoder_families(now: EncoderSnapshot, prefix: str) -> Iterator[Metric]:
    """The encoder's gauges and counters."""
    gauges = (
        ("embedding_requests_running", "Embedding requests in a call of the encoder", now.requests_running),
        ("embedding_requests_waiting", "Embedding requests in the queue", now.requests_waiting),
    )
    for name, documentation, value in gauges:
        yield GaugeMetricFamily(prefix + name, documentation, value=value)
    counters = (
        ("embedding_requests", "Embedding requests that were answered", now.requests_total),
        ("embedding_requests_cancelled", "Embedding requests whose client left", now.cancelled_total),
        ("embedding_requests_failed", "Embedding requests that failed", now.failed_total),
        ("embedding_inputs", "Texts that were encoded", now.sequences_total),
        ("embedding_tokens", "Tokens that were encoded", now.tokens_total),
        ("embedding_rows", "Rows of the encoder's programs, padding included", now.rows_total),
        ("embedding_calls", "Calls of the encoder, each with the requests that waited", now.calls_total),
        ("embedding_seconds", "Seconds in calls of the encoder", now.seconds_total),
        ("embedding_compiles_after_ready", "Programs compiled after the server said ready", now.compiles_after_ready),
    )
    for name, documentation, total in counters:
        yield CounterMetricFamily(prefix + name, documentation, value=total)


def encoder_health(model: str, engine: EncoderEngine) -> dict[str, Any]:
    """The block `embeddings` of /health."""
    now, info = engine.snapshot(), engine.info
    return {
        "model": model,
        "ready": now.ready,
        "requests_running": now.requests_running,
        "requests_waiting": now.requests_waiting,
        "requests_total": now.requests_total,
        "cancelled_total": now.cancelled_total,
        "failed_total": now.failed_total,
        "inputs_total": now.sequences_total,
        "tokens_total": now.tokens_total,
        "calls_total": now.calls_total,
        "seconds_total": round(now.seconds_total, 6),
        "compiles_after_ready": now.compiles_after_ready,
        "model_type": info.model_type,
        "dimensions": info.dimensions,
        "context_length": info.context_length,
        "pooling": info.pooling,
        "exact": info.exact,
        "platform": info.platform,
        "weight_dtype": info.weight_dtype,
        "compute_dtype": info.compute_dtype,
        "weight_bytes": info.weight_bytes,
    }
