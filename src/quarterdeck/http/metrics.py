"""Metrics of this process, and their rendering for `/metrics`.

Counting is on the hot path, so it is only a dictionary lookup and an addition. The Prometheus library is used only to
render. Metric names without the prefix `quarterdeck_` come from the specifications of this server.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from quarterdeck.core.clock import system_now
from quarterdeck.core.ids import id_created_at
from quarterdeck.engine.event_log import NewEvent

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


INVOCATION_OUTCOMES = {
    f"invocation.{outcome}": outcome for outcome in ("succeeded", "failed", "timed_out", "canceled", "dead")
}
"""The events that end an invocation, and the label of each outcome."""
INVOCATION_DURATION_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
)
"""Buckets, in seconds, for the time from the creation of an invocation to its end, including retries."""
TERMINATION_REASONS = frozenset({"requested", "ttl_expired", "orphaned", "delegation_revoked"})
"""Reasons with their own label. Callers choose reasons freely, so all others are counted as `other`."""


class _TerminateEventData(msgspec.Struct):
    reason: str


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        buckets, running_total = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running_total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(running_total)))
        return buckets


class Metrics(Collector):
    """All metrics of this process. Implements the observers of lanes and sweeps."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._request_seconds: dict[str, Histogram] = {}
        self._batch_sizes: dict[str, Histogram] = {}
        self._batch_seconds: dict[str, Histogram] = {}
        self._refusals: dict[tuple[str, str], int] = {}
        self._quota_denials: dict[str, int] = {}
        self._terminations: dict[str, int] = {}
        self._outcomes: dict[str, int] = dict.fromkeys(INVOCATION_OUTCOMES.values(), 0)
        self._invocation_seconds = Histogram(INVOCATION_DURATION_BUCKETS)
        self._sweep_actions: dict[tuple[str, str], int] = {}
        self._cross_zone_reads: dict[str, int] = {}
        self._gauges: dict[tuple[str, str], dict[str, Callable[[], float]]] = {}
        self._counters: dict[tuple[str, str], dict[str, Callable[[], float]]] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._retries: dict[tuple[str, str], int] = {}

    # -- recording ----------------------------------------------------------------------------------------------

    def record_request(self, route: str, status: int, seconds: float) -> None:
        key = (route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        histogram = self._request_seconds.get(route)
        if histogram is None:
            histogram = self._request_seconds[route] = Histogram(DURATION_BUCKETS)
        histogram.observe(seconds)

    def on_batch(self, lane: str, size: int, seconds: float) -> None:
        self._batch_sizes.setdefault(lane, Histogram(BATCH_SIZE_BUCKETS)).observe(size)
        self._batch_seconds.setdefault(lane, Histogram(DURATION_BUCKETS)).observe(seconds)

    def on_refused(self, lane: str, reason: str) -> None:
        self._refusals[lane, reason] = self._refusals.get((lane, reason), 0) + 1

    def record_quota_denial(self, bound: str) -> None:
        self._quota_denials[bound] = self._quota_denials.get(bound, 0) + 1

    def record_events(self, events: Sequence[NewEvent]) -> None:
        """Count committed events."""
        for event in events:
            if event.type == "session.terminate":
                reason = msgspec.json.decode(event.data, type=_TerminateEventData).reason
                label = reason if reason in TERMINATION_REASONS else "other"
                self._terminations[label] = self._terminations.get(label, 0) + 1
            elif (outcome := INVOCATION_OUTCOMES.get(event.type)) is not None:
                self._outcomes[outcome] += 1
                # The id contains the creation time. The clocks of two replicas may differ, so the result is at least 0.
                self._invocation_seconds.observe(max(0, system_now() - id_created_at(event.subject)) / 1000)

    def on_swept(self, sweep: str, changed: int) -> None:
        self._sweep_actions[sweep, "moved"] = self._sweep_actions.get((sweep, "moved"), 0) + changed
        self._cross_zone_reads[sweep] = self._cross_zone_reads.get(sweep, 0) + 1

    def on_failed(self, sweep: str) -> None:
        self._sweep_actions[sweep, "failed"] = self._sweep_actions.get((sweep, "failed"), 0) + 1

    def on_retried(self, lane: str, code: str) -> None:
        self._retries[lane, code] = self._retries.get((lane, code), 0) + 1

    def add_gauge(self, name: str, help_text: str, label: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
        self._gauges.setdefault((name, help_text), {})[label] = read

    def add_counter(self, name: str, help_text: str, label: str, read: Callable[[], float]) -> None:
        """Add a counter that is maintained elsewhere and read at each scrape."""
        self._counters.setdefault((name, help_text), {})[label] = read

    def add_histogram(self, name: str, help_text: str) -> Callable[[float], None]:
        """Add a histogram of durations in seconds. Returns the function that records one."""
        return self._histograms.setdefault((name, help_text), Histogram(DURATION_BUCKETS)).observe

    # -- rendering ----------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("quarterdeck_http_requests", "Requests answered", labels=["route", "status"])
        for (route, status), count in self._requests.items():
            requests.add_metric([route, str(status)], count)
        yield requests
        yield _histogram_family(
            "quarterdeck_http_request_duration_seconds", "Duration of a request", "route", self._request_seconds
        )
        yield _histogram_family("quarterdeck_lane_batch_size", "Commands per batch", "lane", self._batch_sizes)
        yield _histogram_family("quarterdeck_lane_batch_seconds", "Duration of a batch", "lane", self._batch_seconds)
        yield _counter_family("quarterdeck_lane_refusals", "Commands refused", ["lane", "code"], self._refusals)
        yield _counter_family(
            "subagent_quota_denials", "Requests refused by a bound", ["bound"], _single_label(self._quota_denials)
        )
        yield _counter_family(
            "subagent_cascade_terminations",
            "Sessions terminated, by reason",
            ["reason"],
            _single_label(self._terminations),
        )
        yield _counter_family(
            "subagent_invocations", "Invocations ended, by outcome", ["outcome"], _single_label(self._outcomes)
        )
        invocation_seconds = HistogramMetricFamily(
            "subagent_invoke_duration_seconds", "Time from the creation of an invocation to its end"
        )
        invocation_seconds.add_metric([], self._invocation_seconds.cumulative_buckets(), self._invocation_seconds.sum)
        yield invocation_seconds
        yield _counter_family(
            "subagent_sweeper_actions",
            "Rows that sweeps changed, and sweeps that failed",
            ["sweep", "action"],
            self._sweep_actions,
        )
        yield _counter_family(
            "subagent_sweeper_cross_tenant_reads",
            "Completed sweeps: each reads across zones",
            ["sweep"],
            _single_label(self._cross_zone_reads),
        )
        yield _counter_family("quarterdeck_lane_retries", "Transactions retried", ["lane", "code"], self._retries)
        for (name, help_text), histogram in self._histograms.items():
            family = HistogramMetricFamily(name, help_text)
            family.add_metric([], histogram.cumulative_buckets(), histogram.sum)
            yield family
        for (name, help_text), readers in self._gauges.items():
            gauge = GaugeMetricFamily(name, help_text, labels=["name"])
            for label, read in readers.items():
                gauge.add_metric([label], read())
            yield gauge
        for (name, help_text), readers in self._counters.items():
            counter = CounterMetricFamily(name, help_text, labels=["name"])
            for label, read in readers.items():
                counter.add_metric([label], read())
            yield counter


def _single_label(counts: dict[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): count for key, count in counts.items()}


LabelValues = TypeVar("LabelValues", bound=tuple[str, ...])


def _counter_family(name: str, help_text: str, labels: list[str], counts: Mapping[LabelValues, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, count in counts.items():
        family.add_metric(list(values), count)
    return family


def _histogram_family(name: str, help_text: str, label: str, histograms: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=[label])
    for value, histogram in histograms.items():
        family.add_metric([value], histogram.cumulative_buckets(), histogram.sum)
    return family
