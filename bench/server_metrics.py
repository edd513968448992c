"""Reads /metrics of a server: responses by status, and commands per commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.plan import BenchError
from bench.testbed import Target

CREATED, CLIENT_CLOSED = "201", "499"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The route and the lane to read."""

    route: str
    lane: str


SPAWN_TRAFFIC = Traffic("POST /zones/{zone}/agents", "spawn")


@dataclass(frozen=True, slots=True)
class TrafficMetrics:
    responses: dict[str, int]
    """Of the route, by status."""
    batches: int
    commands: int

    def since(self, before: TrafficMetrics) -> TrafficMetrics:
        responses = {status: count - before.responses.get(status, 0) for status, count in self.responses.items()}
        return TrafficMetrics(responses, self.batches - before.batches, self.commands - before.commands)

    def add(self, other: TrafficMetrics) -> TrafficMetrics:
        """The sum over two servers."""
        responses = {
            status: self.responses.get(status, 0) + other.responses.get(status, 0)
            for status in {*self.responses, *other.responses}
        }
        return TrafficMetrics(responses, self.batches + other.batches, self.commands + other.commands)


def read_traffic(target: Target, traffic: Traffic = SPAWN_TRAFFIC) -> TrafficMetrics:
    responses: dict[str, int] = {}
    lane = {"count": 0, "sum": 0}
    for name, labels, value in read_samples(target):
        if name == "quarterdeck_http_requests_total" and labels.get("route") == traffic.route:
            responses[labels["status"]] = int(value)
        elif name.startswith("quarterdeck_lane_batch_size_") and labels.get("lane") == traffic.lane:
            lane[name.rpartition("_")[2]] = int(value)
    return TrafficMetrics(responses, lane["count"], lane["sum"])


def check_responses(delta: TrafficMetrics, acknowledged: int, in_flight: int) -> None:
    """All responses were 201, or 499 for a closed connection, and their number matches the acknowledged requests."""
    created = delta.responses.get(CREATED, 0)
    others = {
        status: count for status, count in delta.responses.items() if count and status not in (CREATED, CLIENT_CLOSED)
    }
    if others or not acknowledged <= created <= acknowledged + in_flight:
        raise BenchError(
            f"{acknowledged} responses were counted and up to {in_flight} in flight, but the server reports "
            f"{delta.responses}."
        )


def read_samples(target: Target) -> Iterator[tuple[str, dict[str, str], float]]:
    """All samples: name, labels, value."""
    with target.client() as client:
        text = client.get("/metrics").raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
