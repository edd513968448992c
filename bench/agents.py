"""A thousand agents that are heard of every second, and what that costs the server: sent on a schedule of its own."""

from __future__ import annotations

import msgspec

from bench.load import Requests, as_run, child, order
from bench.meter import CORES, Meter
from bench.orders import OpenTally
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target

AGENTS = 1_000
MOST_PERCENT = 40.0
KEPT_SECONDS = 10.0
"""A heartbeat of each agent is kept so often: a run that were shorter would be spared that."""
BODY = '{"status":"healthy","memoryMb":256,"cpuPercent":12}'
ENGINES = ("PostgreSQL", "SQLite")


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    late: list[OpenTally] = []
    for _ in range(stage.plan.rounds):
        for engine in ENGINES:
            with stage.fresh(engine) as target:
                run, tally = _beats(stage, target)
            runs.setdefault(engine, []).append(run)
            late.append(tally)
    marks = {"PostgreSQL": MOST_PERCENT, "SQLite": None}
    return Findings(
        f"{AGENTS:,} agents, each heard of every second (open loop)",
        lines=[Line(f"heartbeats, {engine}", found) for engine, found in runs.items()],
        figures=[
            Figure(f"CPU of the server for {AGENTS:,} heartbeats a second, {engine}",
                   [(run.server or 0.0) * CORES * 100 for run in found], "% of a core", marks[engine], at_most=True)
            for engine, found in runs.items()
        ],
        notes=[
            f"Each agent has a connection of its own and one heartbeat a second, spread evenly over the second; a run "
            f"takes {max(stage.plan.seconds, KEPT_SECONDS):g} s, in which one heartbeat of each agent is also kept. "
            "Latency runs from the instant a heartbeat was due; up to "
            f"{max(tally.late_p99_ms for tally in late):.1f} ms of p99 are the sender's own grain.",
            "All heartbeats bear the token of the server's administrator, whose verification is remembered, as that of "
            "agents' own tokens is.",
        ],
    )  # fmt: skip


def _beats(stage: Stage, target: Target) -> tuple[Run, OpenTally]:
    names = [f"agent-{number}" for number in range(AGENTS)]
    with target.client() as client:
        for name in names:
            client.put(f"/api/v1/agents/{name}", json={"name": name}).raise_for_status()
    requests = Requests([f"/api/v1/agents/{name}/heartbeat" for name in names], "POST", BODY)
    _send(target, requests, stage.plan.warm_up)
    stage.settle()
    meter = Meter(target.watched)
    tally = _send(target, requests, max(stage.plan.seconds, KEPT_SECONDS))
    run = as_run(tally, meter.stop())
    if tally.waited:
        raise BenchError(f"{tally.waited} heartbeats found no connection free: the schedule was not kept.")
    return run, tally


def _send(target: Target, requests: Requests, seconds: float) -> OpenTally:
    told = order(target, requests, AGENTS, seconds, rate=float(AGENTS))
    return msgspec.json.decode(child("bench.openloop", told), type=OpenTally)
