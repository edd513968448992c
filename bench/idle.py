"""What a server weighs that has started on SQLite, answered one request, and now waits."""

from __future__ import annotations

from bench.meter import resident_mb
from bench.results import Figure, Findings
from bench.spawning import Spawning
from bench.stage import Stage

MOST_MB = 80.0


def measure(stage: Stage) -> Findings:
    weights = []
    loaded = 0.0
    for number in range(stage.plan.rounds):
        with stage.server() as target:
            with target.client() as client:
                client.post("/zones/default/agents", json={"application_id": "bench"}).raise_for_status()
            weights.append(resident_mb(target.pid))
            if number == 0:
                Spawning(stage, target).run()
                loaded = resident_mb(target.pid)
    return Findings(
        "Memory of an idle server on SQLite",
        figures=[Figure("Idle resident memory on SQLite", weights, "MB", MOST_MB, at_most=True)],
        notes=[f"After a run of spawns with 64 connections the same server holds {loaded:.0f} MB."],
    )
