"""The latency of events from commit to 200 SSE clients that stream the zone."""

from __future__ import annotations

import msgspec

from bench.background_process import run_in_background
from bench.child_types import DeliveryResult, OpenLoopResult
from bench.load import GRACE_SECONDS, Requests, build_load_config, run_load_child, to_run
from bench.meter import CORES, CpuMeter
from bench.plan import BenchError
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
    results: list[DeliveryResult] = []

    def send() -> Run:
        # The listeners are connected before the first event.
        with run_in_background("bench.listeners", listener_config) as listeners:
            meter = CpuMeter(spawn_runner.target.watched_processes)
            sent = msgspec.json.decode(run_load_child("bench.openloop", load_config), type=OpenLoopResult)
            results.append(msgspec.json.decode(listeners.finish(seconds + GRACE_SECONDS), type=DeliveryResult))
        return to_run(sent, meter.stop())

    spawned = spawn_runner.run_checked(zones, 0, send)
    [result] = results
    if result.refused or result.lost:
        raise BenchError(
            f"{result.refused} events arrived out of order or twice, and {result.lost} of {LISTENER_COUNT} listeners "
            "missed events."
        )
    return msgspec.structs.replace(
        spawned,
        rate=result.count / result.seconds,
        count=result.count,
        server_us=None,
        load=(spawned.load or 0.0) + (result.cpu_seconds or 0.0) / result.seconds / CORES,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
    ), result
