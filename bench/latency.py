"""The latency of spawns at half the server's maximum rate, sent on a fixed schedule (open loop)."""

from __future__ import annotations

import msgspec

from bench.child_types import OpenLoopResult
from bench.load import build_load_config, run_load_child, to_run
from bench.meter import CpuMeter
from bench.request_bodies import spawn_requests
from bench.results import Figure, Findings, Line, Run
from bench.spawn_runner import SCENARIOS, SpawnRunner
from bench.testbed import Testbed

CONNECTIONS = 256
"""More than are ever in use, so that requests wait for the server and not for the sender."""
MAX_MS = 25.0


def measure(testbed: Testbed) -> Findings:
    lines: dict[str, list[Run]] = {}
    notes = [
        "Latency starts when a request is due, not when it is sent; the schedule does not wait for responses. The "
        "maximum rate is measured immediately before, on the same server, with 64 connections."
    ]
    for scenario in SCENARIOS:
        results = []
        for _ in range(testbed.plan.rounds):
            with testbed.start_fresh_server(scenario.engine) as target:
                run, result = _measure_at_half_rate(testbed, SpawnRunner(testbed, target), scenario.zones)
            lines.setdefault(scenario.name, []).append(run)
            results.append(result)
        notes.append(f"{scenario.name}: {_describe_tail(results)}")
    return Findings(
        "Latency at half the maximum rate (open loop)",
        lines=[Line(name, runs) for name, runs in lines.items()],
        figures=[
            Figure(f"p99 at half the rate, {name}", [run.p99_ms or 0.0 for run in runs], "ms", MAX_MS, at_most=True)
            for name, runs in lines.items()
        ],
        notes=notes,
    )


def _measure_at_half_rate(testbed: Testbed, spawn_runner: SpawnRunner, zone_count: int) -> tuple[Run, OpenLoopResult]:
    rate = spawn_runner.run(zone_count).rate / 2
    zones = spawn_runner.new_zones(zone_count)
    results: list[OpenLoopResult] = []

    def send() -> Run:
        meter = CpuMeter(spawn_runner.target.watched_processes)
        config = build_load_config(spawn_runner.target, spawn_requests(zones), CONNECTIONS, testbed.plan.seconds, rate)
        result = msgspec.json.decode(run_load_child("bench.openloop", config), type=OpenLoopResult)
        results.append(result)
        return to_run(result, meter.stop())

    # The sender waits for its last response: nothing is in flight when it ends, so the numbers must match exactly.
    return spawn_runner.run_checked(zones, 0, send), results[0]


def _describe_tail(results: list[OpenLoopResult]) -> str:
    worst = max(results, key=lambda result: result.p99_ms)
    late_ms, waited = max(result.late_p99_ms for result in results), sum(result.waited for result in results)
    return (
        f"in the worst round p99.9 was {worst.p999_ms:.1f} ms and the maximum {worst.max_ms:.1f} ms. Up to "
        f"{late_ms:.1f} ms of p99 are the sender's timer resolution; {waited} requests found all {CONNECTIONS} "
        "connections in use."
    )
