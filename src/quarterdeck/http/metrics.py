"""What is counted, and how `/metrics` shows it.

Counting happens on the hot path, so it is a dictionary and an addition; the Prometheus library only renders. Names are
the seeds' where the seeds give them.
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
from quarterdeck.core.ids import made_at
from quarterdeck.engine.event_log import NewEvent

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


OUTCOMES = {f"invocation.{outcome}": outcome for outcome in ("succeeded", "failed", "timed_out", "canceled", "dead")}
"""The events by which an invocation ends."""
LIVES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds that an invocation takes, its retries included."""
REASONS = frozenset({"requested", "ttl_expired", "orphaned", "delegation_revoked"})
"""Callers choose reasons freely; a label must not grow with them. What else there is, is `other`."""


class _Reason(msgspec.Struct):
    reason: str


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        shown, sum_so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            sum_so_far += count
            shown.append(("+Inf" if bound == float("inf") else str(bound), float(sum_so_far)))
        return shown


class Metrics(Collector):
    """Every figure of this process. Implements the observers of lanes and sweeps."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._durations: dict[str, Histogram] = {}
        self._batches: dict[str, Histogram] = {}
        self._batch_seconds: dict[str, Histogram] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self._denied: dict[str, int] = {}
        self._cascades: dict[str, int] = {}
        self._outcomes: dict[str, int] = dict.fromkeys(OUTCOMES.values(), 0)
        self._lives = Histogram(LIVES)
        self._sweeps: dict[tuple[str, str], int] = {}
        self._cross_zone: dict[str, int] = {}
        self._gauges: dict[tuple[str, str], dict[str, Callable[[], float]]] = {}
        self._counters: dict[tuple[str, str], dict[str, Callable[[], float]]] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._retries: dict[tuple[str, str], int] = {}

    # -- what happened ------------------------------------------------------------------------------------------

    def request(self, route: str, status: int, seconds: float) -> None:
        key = (route, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        histogram = self._durations.get(route)
        if histogram is None:
            histogram = self._durations[route] = Histogram(BUCKETS)
        histogram.observe(seconds)

    def batch(self, lane: str, size: int, seconds: float) -> None:
        self._batches.setdefault(lane, Histogram(SIZES)).observe(size)
        self._batch_seconds.setdefault(lane, Histogram(BUCKETS)).observe(seconds)

    def refused(self, lane: str, reason: str) -> None:
        self._refused[lane, reason] = self._refused.get((lane, reason), 0) + 1

    def denied(self, bound: str) -> None:
        self._denied[bound] = self._denied.get(bound, 0) + 1

    def committed(self, events: Sequence[NewEvent]) -> None:
        """Hears of what has been committed."""
        for event in events:
            if event.type == "session.terminate":
                reason = msgspec.json.decode(event.data, type=_Reason).reason
                label = reason if reason in REASONS else "other"
                self._cascades[label] = self._cascades.get(label, 0) + 1
            elif (outcome := OUTCOMES.get(event.type)) is not None:
                self._outcomes[outcome] += 1
                # Its id was made when it was asked for. Two replicas' clocks may differ: no less than 0.
                self._lives.observe(max(0, system_now() - made_at(event.subject)) / 1000)

    def swept(self, sweep: str, moved: int) -> None:
        self._sweeps[sweep, "moved"] = self._sweeps.get((sweep, "moved"), 0) + moved
        self._cross_zone[sweep] = self._cross_zone.get(sweep, 0) + 1

    def failed(self, sweep: str) -> None:
        self._sweeps[sweep, "failed"] = self._sweeps.get((sweep, "failed"), 0) + 1

    def retried(self, lane: str, code: str) -> None:
        self._retries[lane, code] = self._retries.get((lane, code), 0) + 1

    def gauge(self, name: str, help_text: str, label: str, read: Callable[[], float]) -> None:
        """A figure that is read when it is asked for."""
        self._gauges.setdefault((name, help_text), {})[label] = read

    def counter(self, name: str, help_text: str, label: str, read: Callable[[], float]) -> None:
        """The same for a figure that somebody else counts, and that only grows."""
        self._counters.setdefault((name, help_text), {})[label] = read

    def histogram(self, name: str, help_text: str, histogram: Histogram) -> None:
        """One that somebody else observes."""
        self._histograms[name, help_text] = histogram

    # -- how it is shown ----------------------------------------------------------------------------------------

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
        yield _histograms("quarterdeck_http_request_duration_seconds", "Time to answer", "route", self._durations)
        yield _histograms("quarterdeck_lane_batch_size", "Commands in a transaction", "lane", self._batches)
        yield _histograms("quarterdeck_lane_batch_seconds", "Time of a transaction", "lane", self._batch_seconds)
        yield _counters("quarterdeck_lane_refusals", "Commands refused", ["lane", "code"], self._refused)
        yield _counters("subagent_quota_denials", "Spawns refused by a bound", ["bound"], _single(self._denied))
        yield _counters(
            "subagent_cascade_terminations", "Sessions ended, by reason", ["reason"], _single(self._cascades)
        )
        yield _counters("subagent_invocations", "Invocations that ended", ["outcome"], _single(self._outcomes))
        lives = HistogramMetricFamily("subagent_invoke_duration_seconds", "From the call of an invocation to its end")
        lives.add_metric([], self._lives.cumulative(), self._lives.total)
        yield lives
        yield _counters("subagent_sweeper_actions", "What sweeps did", ["sweep", "action"], self._sweeps)
        yield _counters(
            "subagent_sweeper_cross_tenant_reads", "Reads across zones", ["sweep"], _single(self._cross_zone)
        )
        yield _counters("quarterdeck_lane_retries", "Attempts that failed", ["lane", "code"], self._retries)
        for (name, help_text), histogram in self._histograms.items():
            family = HistogramMetricFamily(name, help_text)
            family.add_metric([], histogram.cumulative(), histogram.total)
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


def _single(counts: dict[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): count for key, count in counts.items()}


Labels = TypeVar("Labels", bound=tuple[str, ...])


def _counters(name: str, text: str, labels: list[str], counts: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(list(values), count)
    return family


def _histograms(name: str, text: str, label: str, found: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in found.items():
        family.add_metric([value], histogram.cumulative(), histogram.total)
    return family
