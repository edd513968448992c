"""The CPU that 1,000 heartbeats per second cost the server, sent on a fixed schedule (open loop)."""

from __future__ import annotations

import msgspec

from bench.child_types import OpenLoopResult
from bench.load import Requests, build_load_config, run_load_child, to_run
from bench.meter import CORES, CpuMeter
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Target, Testbed

AGENTS = 1_000
MAX_CPU_PERCENT = 40.0
PERSIST_SECONDS = 10.0
"""A heartbeat of each agent is stored this often. A shorter run would not include the cost."""
BODY = '{"status":"healthy","memoryMb":256,"cpuPercent":12}'
ENGINES = ("PostgreSQL", "SQLite")


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    results: list[OpenLoopResult] = []
    for _ in range(testbed.plan.rounds):
        for engine in ENGINES:
            with testbed.start_fresh_server(engine) as target:
                run, result = _measure_heartbeats(testbed, target)
            runs.setdefault(engine, []).append(run)
            results.append(result)
    limits = {"PostgreSQL": MAX_CPU_PERCENT, "SQLite": None}
    return Findings(
        f"{AGENTS:,} agents with one heartbeat per second each (open loop)",
        lines=[Line(f"heartbeats, {engine}", line_runs) for engine, line_runs in runs.items()],
        figures=[
            Figure(f"CPU of the server for {AGENTS:,} heartbeats per second, {engine}",
                   [(run.server or 0.0) * CORES * 100 for run in line_runs], "% of a core", limits[engine],
                   at_most=True)
            for engine, line_runs in runs.items()
        ],
        notes=[
            "Each agent has its own connection and sends one heartbeat per second, spread evenly over the second. A "
            f"run takes {max(testbed.plan.seconds, PERSIST_SECONDS):g} s and stores one heartbeat of each agent. "
            "Latency starts when a heartbeat is due. Up to "
            f"{max(result.late_p99_ms for result in results):.1f} ms of p99 are the sender's timer resolution.",
            "All heartbeats use the administrator's token. The server caches its verification, as it does for the "
            "tokens of agents.",
        ],
    )  # fmt: skip


def _measure_heartbeats(testbed: Testbed, target: Target) -> tuple[Run, OpenLoopResult]:
    names = [f"agent-{number}" for number in range(AGENTS)]
    with target.client() as client:
        for name in names:
            client.put(f"/api/v1/agents/{name}", json={"name": name}).raise_for_status()
    requests = Requests([f"/api/v1/agents/{name}/heartbeat" for name in names], "POST", BODY)
    _send_heartbeats(target, requests, testbed.plan.warm_up_seconds)
    testbed.flush_to_disk()
    meter = CpuMeter(target.watched_processes)
    result = _send_heartbeats(target, requests, max(testbed.plan.seconds, PERSIST_SECONDS))
    run = to_run(result, meter.stop())
    if result.waited:
        raise BenchError(f"{result.waited} heartbeats found no free connection: the schedule was not kept.")
    return run, result


def _send_heartbeats(target: Target, requests: Requests, seconds: float) -> OpenLoopResult:
    config = build_load_config(target, requests, AGENTS, seconds, rate=float(AGENTS))
    return msgspec.json.decode(run_load_child("bench.openloop", config), type=OpenLoopResult)
