"""The memory of an idle server on SQLite after one request."""

from __future__ import annotations

from bench.meter import resident_mb
from bench.results import Figure, Findings
from bench.spawn_runner import SpawnRunner
from bench.testbed import Testbed

MAX_MB = 80.0


def measure(testbed: Testbed) -> Findings:
    idle_mb: list[float] = []
    after_load_mb = 0.0
    for number in range(testbed.plan.rounds):
        with testbed.start_server() as target:
            with target.client() as client:
                client.post("/zones/default/agents", json={"application_id": "bench"}).raise_for_status()
            idle_mb.append(resident_mb(target.pid))
            if number == 0:
                SpawnRunner(testbed, target).run()
                after_load_mb = resident_mb(target.pid)
    return Findings(
        "Memory of an idle server on SQLite",
        figures=[Figure("Idle resident memory on SQLite", idle_mb, "MB", MAX_MB, at_most=True)],
        notes=[f"After a run of spawns with 64 connections the same server uses {after_load_mb:.0f} MB."],
    )
