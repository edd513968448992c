"""The latency of events from commit to 200 SSE clients that stream the zone."""

from __future__ import annotations

from bench.child_types import DeliveryResult
from bench.delivery import measure_delivery
from bench.load import Requests, build_load_config
from bench.request_bodies import spawn_requests
from bench.results import Figure, Findings, Line, Run
from bench.spawn_runner import SpawnRunner
from bench.testbed import Testbed

LISTENER_COUNT = 200
RATE = 200
CONNECTIONS = 64
MAX_MS = 50.0
ENGINES = ("PostgreSQL", "SQLite")


def measure(testbed: Testbed) -> Findings:
    lines: dict[str, list[Run]] = {}
    max_ms = 0.0
    for engine in ENGINES:
        for _ in range(testbed.plan.rounds):
            with testbed.start_fresh_server(engine) as target:
                run, result = _measure_delivery(testbed, SpawnRunner(testbed, target))
            lines.setdefault(engine, []).append(run)
            max_ms = max(max_ms, result.max_ms)
    return Findings(
        f"From commit to {LISTENER_COUNT} listeners",
        lines=[Line(f"{engine}, events received", runs) for engine, runs in lines.items()],
        figures=[
            Figure(
                f"p99 from commit to {LISTENER_COUNT} listeners, {engine}",
                [run.p99_ms or 0.0 for run in runs],
                "ms",
                MAX_MS,
                at_most=True,
            )
            for engine, runs in lines.items()
        ],
        notes=[
            f"{RATE} spawns per second into one zone, sent on a schedule; {LISTENER_COUNT} streams follow that zone, "
            f"all in one process on the same machine: {RATE * LISTENER_COUNT:,} events are received per second.",
            "Percentiles cover all pairs of listener and event. Latency runs from the event's `at`, which the "
            "database's clock set before the commit, until the listener has received the event. It includes the rest "
            "of the transaction, the commit, and the listeners' own work for each other's events.",
            f"Every listener received every event, once and in order. The maximum was {max_ms:.0f} ms.",
        ],
    )


def _measure_delivery(testbed: Testbed, spawn_runner: SpawnRunner) -> tuple[Run, DeliveryResult]:
    [zone] = zones = spawn_runner.new_zones(1)
    seconds = testbed.plan.seconds
    load_config = build_load_config(spawn_runner.target, spawn_requests(zones), CONNECTIONS, seconds, RATE)
    listener_config = build_load_config(
        spawn_runner.target, Requests([f"/zones/{zone}/events"]), LISTENER_COUNT, seconds, RATE
    )
    return measure_delivery(spawn_runner, zones, load_config, "bench.listeners", listener_config)
