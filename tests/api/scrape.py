"""Reads /metrics as Prometheus does."""

from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import Server


def samples(server: Server) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample of the page by its name without the prefix."""
    answer = server.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.name.startswith("jaxfold:")
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name.removeprefix("jaxfold:"), []).append((sample.labels, sample.value))
    return found


def value(server: Server, name: str) -> float:
    ((labels, number),) = samples(server)[name]
    assert labels == {}
    return number
