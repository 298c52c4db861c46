"""The /metrics page. Engine counters are read when the page is asked for; times of requests are observed as they end.

Every family stands under `jaxfold:`. Where vLLM has a name for the same thing it is repeated with the same values, so
that a dashboard made for vLLM fills when its prefix is swapped. What cannot be counted is left out: the draft counters
until something has drafted, the cache and the queue while there is no engine.
"""

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from jaxfold.api.operations.metrics_embeddings import encoder_families
from jaxfold.runtime.api import Engine
from jaxfold.runtime.api import EngineSnapshot
from jaxfold.runtime.api import RequestStats
from jaxfold.runtime.encoders.api import EncoderEngine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "jaxfold:"
BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of every histogram, in seconds."""
MAX_SERIES = 5000
"""Samples of requests_total with names of their own; what comes later is counted under the key "other"."""
OTHER_KEY = "other"


class Histogram:
    """Counts of seconds by bucket. Used on one thread only."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """The histogram in Prometheus' form: cumulative counts."""
        labels = [*(str(bound) for bound in BUCKETS), "+Inf"]
        running, buckets = 0, []
        for label, count in zip(labels, self._counts, strict=True):
            running += count
            buckets.append((label, float(running)))
        return HistogramMetricFamily(PREFIX + name, documentation, buckets=buckets, sum_value=self._sum)


class Metrics(Collector):
    """The metrics of one application, in a registry of its own."""

    def __init__(
        self, engine: Callable[[], Engine | None], encoder: Callable[[], EncoderEngine | None] = lambda: None
    ) -> None:
        self.client_disconnections = 0
        self._engine = engine
        self._encoder = encoder
        self._latency = Histogram()
        self._first_token = Histogram()
        self._decode = Histogram()
        self._prefill = Histogram()
        self._queue = Histogram()
        self._requests: dict[tuple[str, int, str | None], int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count(self, route: str, status: int, key: str | None) -> None:
        """Note an answer: the name of its route, its HTTP status and its key's label (None: no keys are configured)."""
        series = (route, status, key)
        if series not in self._requests and len(self._requests) >= MAX_SERIES:
            series = (route, status, None if key is None else OTHER_KEY)
        self._requests[series] = self._requests.get(series, 0) + 1

    def observe(self, stats: RequestStats, latency_s: float) -> None:
        """Note a request that finished as asked; `latency_s` runs from its arrival to its last token."""
        self._latency.observe(latency_s)
        self._queue.observe(stats.queue_s)
        self._prefill.observe(stats.prefill_s)
        if stats.completion_tokens:
            self._decode.observe(stats.decode_s)
            if stats.time_to_first_token_s is not None:
                self._first_token.observe(stats.time_to_first_token_s)

    def page(self) -> bytes:
        """The page in the text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every page."""
        engine = self._engine()
        if engine is not None:
            snapshot = engine.snapshot()
            yield from _gauges(snapshot, engine.info.lanes)
            yield from _kv_usage(snapshot)
            yield from _counters(snapshot)
        encoder = self._encoder()
        if encoder is not None:
            yield from encoder_families(encoder.snapshot(), PREFIX)
        yield from self._histograms()
        yield self._requests_total()
        yield _counter(
            "client_disconnections", "Requests whose client left before the response ended", self.client_disconnections
        )

    def _requests_total(self) -> Metric:
        keyed = any(key is not None for _, _, key in self._requests)
        labels = ["route", "status", *(["key"] if keyed else [])]
        family = CounterMetricFamily(PREFIX + "requests", "Answers by route, status and key", labels=labels)
        for (route, status, key), number in sorted(self._requests.items(), key=str):
            family.add_metric([route, str(status), *([key or ""] if keyed else [])], number)
        return family

    def _histograms(self) -> Iterator[Metric]:
        table: Sequence[tuple[Histogram, str, Sequence[str]]] = (
            (
                self._latency,
                "Seconds from a request's arrival to its last token",
                ("request_latency_seconds", "e2e_request_latency_seconds"),
            ),
            (
                self._first_token,
                "Seconds from a request's admission to its first token",
                ("time_to_first_token_seconds",),
            ),
            (
                self._decode,
                "Seconds of a request's decoding",
                ("request_decode_seconds", "request_decode_time_seconds"),
            ),
            (
                self._queue,
                "Seconds that a request waited for a lane",
                ("request_queue_seconds", "request_queue_time_seconds"),
            ),
            (
                self._prefill,
                "Seconds of a request's prefill",
                ("request_prefill_seconds", "request_prefill_time_seconds"),
            ),
        )
        for histogram, documentation, names in table:
            for name in names:
                yield histogram.family(name, documentation)


def _gauges(snapshot: EngineSnapshot, lanes: int) -> Iterator[Metric]:
    table: Sequence[tuple[str, str, float]] = (
        ("requests_running", "Requests in a lane, prefilling ones included", snapshot.requests_running),
        ("num_requests_running", "Requests in a lane, prefilling ones included", snapshot.requests_running),
        ("requests_waiting", "Requests in the queue", snapshot.requests_waiting),
        ("num_requests_waiting", "Requests in the queue", snapshot.requests_waiting),
        ("requests_running_max", "Lanes", lanes),
        ("generation_tokens_running", "Tokens of the replies that are running now", snapshot.generation_tokens_running),
    )
    for name, documentation, value in table:
        yield GaugeMetricFamily(PREFIX + name, documentation, value=value)


def _kv_usage(snapshot: EngineSnapshot) -> Iterator[Metric]:
    """Part of the cache's pages in use: the whole pool as "all", then each lane's own part."""
    usage = {"all": snapshot.pages_used / max(1, snapshot.pages_total)}
    usage |= {str(lane): part for lane, part in sorted(snapshot.lane_kv_usage.items())}
    for name, label in (("kv_cache_usage_ratio", "pool"), ("kv_cache_usage_perc", "stream")):
        family = GaugeMetricFamily(PREFIX + name, "Part of the cache in use: all of it, and by lane", labels=[label])
        for value_label, part in usage.items():
            family.add_metric([value_label], part)
        yield family


def _counters(snapshot: EngineSnapshot) -> Iterator[Metric]:
    table: list[tuple[str, str, float]] = [
        ("prompt_tokens", "Prompt tokens of finished requests", snapshot.prompt_tokens_total),
        ("prompt_tokens_cached", "Prompt tokens found in the prefix cache", snapshot.cached_tokens_total),
        ("generation_tokens", "Reply tokens of finished requests", snapshot.completion_tokens_total),
        ("decode_rounds", "Decode rounds", snapshot.rounds_total),
        ("preemptions", "Replies that were taken off their lane and replayed", snapshot.preemptions_total),
        ("compiles_after_ready", "Programs compiled after the server said ready", snapshot.compiles_after_ready),
    ]
    if drafted := snapshot.drafted_total:
        for name in ("mtp_drafted", "spec_decode_num_draft_tokens"):
            table.append((name, "Draft tokens proposed, by whatever method", drafted))
        for name in ("mtp_accepted", "spec_decode_num_accepted_tokens"):
            table.append((name, "Draft tokens accepted", snapshot.accepted_total))
    for name, documentation, value in table:
        yield _counter(name, documentation, value)
    yield from _drafts(snapshot)


def _drafts(snapshot: EngineSnapshot) -> Iterator[Metric]:
    """Draft tokens by the proposer that they came from."""
    if not snapshot.drafts:
        return
    table = (("draft_tokens_drafted", "proposed", 0), ("draft_tokens_accepted", "accepted", 1))
    for name, what, place in table:
        family = CounterMetricFamily(PREFIX + name, f"Draft tokens {what}, by proposer", labels=["proposer"])
        for proposer, counts in sorted(snapshot.drafts.items()):
            family.add_metric([proposer], counts[place])
        yield family


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, documentation, value=value)
