"""The values of this process's metrics, and their rendering for `/metrics`. `core.metric_table` declares the metrics.

Counting is on the hot path, so it is only a dictionary lookup and an addition. The Prometheus library is used only to
render.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from quarterdeck.core import metric_table
from quarterdeck.core.clock import system_now
from quarterdeck.core.ids import id_created_at
from quarterdeck.core.metric_table import Kind, Metric
from quarterdeck.engine.event_log import NewEvent

FAMILIES: Mapping[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
INVOCATION_OUTCOMES = {
    f"invocation.{outcome}": outcome for outcome in ("succeeded", "failed", "timed_out", "canceled", "dead")
}
"""The events that end an invocation, and the label of each outcome."""
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


LabelValues = str | tuple[str | int, ...]
"""The value of the only label, or the values of all labels in declared order."""


class Histograms(dict[LabelValues, Histogram]):
    """A histogram for each label value, created when it is first observed."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._bounds = metric.buckets

    def __missing__(self, values: LabelValues) -> Histogram:
        histogram = self[values] = Histogram(self._bounds)
        return histogram


Value = int | Histogram | Callable[[], float]


class Metrics(Collector):
    """All metrics of this process. Implements the observers of lanes and sweeps."""

    def __init__(self) -> None:
        self._requests: dict[LabelValues, int] = {}
        self._request_seconds = Histograms(metric_table.HTTP_REQUEST_SECONDS)
        self._batch_sizes = Histograms(metric_table.LANE_BATCH_SIZE)
        self._batch_seconds = Histograms(metric_table.LANE_BATCH_SECONDS)
        self._refusals = Counter[LabelValues]()
        self._quota_denials = Counter[LabelValues]()
        self._terminations = Counter[LabelValues]()
        self._outcomes = Counter[LabelValues](dict.fromkeys(INVOCATION_OUTCOMES.values(), 0))
        self._invocation_seconds = Histogram(metric_table.INVOCATION_SECONDS.buckets)
        self._sweep_actions = Counter[LabelValues]()
        self._cross_zone_reads = Counter[LabelValues]()
        self._retries = Counter[LabelValues]()
        self._recorded: dict[Metric, Mapping[LabelValues, Value]] = {
            metric_table.HTTP_REQUESTS: self._requests,
            metric_table.HTTP_REQUEST_SECONDS: self._request_seconds,
            metric_table.LANE_BATCH_SIZE: self._batch_sizes,
            metric_table.LANE_BATCH_SECONDS: self._batch_seconds,
            metric_table.LANE_REFUSALS: self._refusals,
            metric_table.QUOTA_DENIALS: self._quota_denials,
            metric_table.TERMINATIONS: self._terminations,
            metric_table.INVOCATIONS: self._outcomes,
            metric_table.INVOCATION_SECONDS: {(): self._invocation_seconds},
            metric_table.SWEEP_ACTIONS: self._sweep_actions,
            metric_table.CROSS_ZONE_READS: self._cross_zone_reads,
            metric_table.LANE_RETRIES: self._retries,
        }
        self._added: dict[Metric, dict[LabelValues, Value]] = {}

    # -- recording ----------------------------------------------------------------------------------------------

    def record_request(self, route: str, status: int, seconds: float) -> None:
        # A subclass of dict has slower subscripts, so those of every request use `get`.
        key = (route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        (self._request_seconds.get(route) or self._request_seconds[route]).observe(seconds)

    def on_batch(self, lane: str, size: int, seconds: float) -> None:
        self._batch_sizes[lane].observe(size)
        self._batch_seconds[lane].observe(seconds)

    def on_refused(self, lane: str, reason: str) -> None:
        self._refusals[lane, reason] += 1

    def record_quota_denial(self, bound: str) -> None:
        self._quota_denials[bound] += 1

    def record_events(self, events: Sequence[NewEvent]) -> None:
        """Count committed events."""
        for event in events:
            if event.type == "session.terminate":
                reason = msgspec.json.decode(event.data, type=_TerminateEventData).reason
                self._terminations[reason if reason in TERMINATION_REASONS else "other"] += 1
            elif (outcome := INVOCATION_OUTCOMES.get(event.type)) is not None:
                self._outcomes[outcome] += 1
                # The id contains the creation time. The clocks of two replicas may differ, so the result is at least 0.
                self._invocation_seconds.observe(max(0, system_now() - id_created_at(event.subject)) / 1000)

    def on_swept(self, sweep: str, changed: int) -> None:
        self._sweep_actions[sweep, "moved"] += changed
        self._cross_zone_reads[sweep] += 1

    def on_failed(self, sweep: str) -> None:
        self._sweep_actions[sweep, "failed"] += 1

    def on_retried(self, lane: str, code: str) -> None:
        self._retries[lane, code] += 1

    def add(self, metric: Metric, label: str, read: Callable[[], float]) -> None:
        """Add a gauge or counter that is maintained elsewhere and read at each scrape."""
        self._added.setdefault(metric, {})[label] = read

    def add_histogram(self, metric: Metric) -> Callable[[float], None]:
        """Add a histogram without labels. Returns the function that records a value."""
        histogram = Histogram(metric.buckets)
        self._added[metric] = {(): histogram}
        return histogram.observe

    # -- rendering ----------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[MetricFamily]:
        return []

    def collect(self) -> Iterator[MetricFamily]:
        for metric, values in self._recorded.items():
            yield _build_family(metric, values)
        for kind in Kind:
            for metric, values in self._added.items():
                if metric.kind is kind:
                    yield _build_family(metric, values)


def _build_family(metric: Metric, values: Mapping[LabelValues, Value]) -> MetricFamily:
    family = FAMILIES[metric.kind](metric.name, metric.help_text, labels=tuple(metric.labels))
    for key, value in values.items():
        labels = [key] if isinstance(key, str) else [str(part) for part in key]
        if isinstance(value, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, value.cumulative_buckets(), value.sum)
        else:
            assert not isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, value() if callable(value) else value)
    return family
