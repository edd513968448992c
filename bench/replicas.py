"""Spawns through three replicas on one PostgreSQL, compared with one replica.

The number of connections and generators is the same: in one run all of them use the first replica, in the next each
replica gets a third. The ratio shows the cost of sharing the locks, the event log and the machine.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import msgspec

from bench import session_counts
from bench.child_types import LoadResult
from bench.load import Requests, run_generator, to_run
from bench.meter import CpuMeter
from bench.request_bodies import spawn_requests
from bench.results import Figure, Findings, Line, Run, round_ratios
from bench.server_metrics import TrafficMetrics, check_responses, read_traffic
from bench.spawn import Schedule, run_forth_and_back
from bench.spawn_runner import CONNECTIONS, MANY_ZONES
from bench.testbed import Target, Testbed

REPLICA_COUNT = 3
MIN_RATIO = 0.9
ONE_HOT, THREE_HOT = "one replica, one hot zone", "three replicas, one hot zone"
ONE_MANY, THREE_MANY = f"one replica, {MANY_ZONES} zones", f"three replicas, {MANY_ZONES} zones"


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        with _start_replicas(testbed) as targets:
            run_forth_and_back(_build_schedule(ReplicaRunner(testbed, targets), targets), runs)

    def ratio_values(measured: str, control: str) -> list[float]:
        return round_ratios(runs[measured], runs[control], testbed.plan.rounds)

    return Findings(
        "Three replicas on one PostgreSQL, compared with one",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            Figure("Three replicas / one, one hot zone", ratio_values(THREE_HOT, ONE_HOT), "×", MIN_RATIO),
            Figure(f"Three replicas / one, {MANY_ZONES} zones", ratio_values(THREE_MANY, ONE_MANY), "×", MIN_RATIO),
        ],
        notes=[
            f"{CONNECTIONS} connections in total from {REPLICA_COUNT} generators, on the same machine as PostgreSQL. "
            "More replicas add no cores here, only more processes that share them. Runs are half as long as others.",
        ],
    )  # fmt: skip


def _build_schedule(runner: ReplicaRunner, targets: list[Target]) -> Schedule:
    first = [targets[0]] * REPLICA_COUNT
    return [
        (ONE_HOT, lambda: runner.run(first, 1)),
        (THREE_HOT, lambda: runner.run(targets, 1)),
        (ONE_MANY, lambda: runner.run(first, MANY_ZONES)),
        (THREE_MANY, lambda: runner.run(targets, MANY_ZONES)),
    ]


@contextlib.contextmanager
def _start_replicas(testbed: Testbed) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(testbed.new_database())
        yield [stack.enter_context(testbed.start_server(database)) for _ in range(REPLICA_COUNT)]


class ReplicaRunner:
    """Runs spawns with several generators at once, each with its share of the connections and its own server."""

    def __init__(self, testbed: Testbed, targets: Sequence[Target]) -> None:
        self._testbed = testbed
        self._targets = targets
        self._names = (f"run{number}" for number in itertools.count(1))
        self._warm_up()

    def run(self, targets: Sequence[Target], zones: int) -> Run:
        """`targets` has one server per generator."""
        zone_ids = self._targets[0].create_zones(next(self._names), zones)
        self._testbed.flush_to_disk()
        counts, metrics = session_counts.count_sessions(self._targets[0], zone_ids), self._read_traffic()
        run = self._run_load(targets, spawn_requests(zone_ids), max(1.0, self._testbed.plan.seconds / 2))
        delta = self._read_traffic().since(metrics)
        session_counts.check_spawned(
            counts, session_counts.count_sessions(self._targets[0], zone_ids), run.count, CONNECTIONS
        )
        check_responses(delta, run.count, CONNECTIONS)
        return msgspec.structs.replace(run, per_commit=delta.commands / max(1, delta.batches))

    def _warm_up(self) -> None:
        zone_ids = self._targets[0].create_zones("warm", 1)
        self._run_load(self._targets, spawn_requests(zone_ids), self._testbed.plan.warm_up_seconds)

    def _run_load(self, targets: Sequence[Target], requests: Requests, seconds: float) -> Run:
        shares = [CONNECTIONS // REPLICA_COUNT + (n < CONNECTIONS % REPLICA_COUNT) for n in range(REPLICA_COUNT)]
        first, *others = dict.fromkeys(targets)
        meter = CpuMeter(replace(first.watched_processes, replicas=tuple(other.pid for other in others)))
        with ThreadPoolExecutor(REPLICA_COUNT) as pool:
            futures = [
                pool.submit(run_generator, target, requests, share, seconds)
                for target, share in zip(targets, shares, strict=True)
            ]
            results = [future.result() for future in futures]
        return to_run(_merge_results(results), meter.stop())

    def _read_traffic(self) -> TrafficMetrics:
        return reduce(TrafficMetrics.add, (read_traffic(target) for target in self._targets))


def _merge_results(results: Sequence[LoadResult]) -> LoadResult:
    """The latencies are the mean of the medians and the maximum of the p99: single latencies are not available here."""
    cpu_seconds = [result.cpu_seconds for result in results]
    return LoadResult(
        count=sum(result.count for result in results),
        seconds=max(result.seconds for result in results),
        refused=sum(result.refused for result in results),
        lost=sum(result.lost for result in results),
        p50_ms=sum(result.p50_ms for result in results) / len(results),
        p99_ms=max(result.p99_ms for result in results),
        cpu_seconds=None if None in cpu_seconds else sum(seconds for seconds in cpu_seconds if seconds is not None),
    )
