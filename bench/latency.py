"""How long a spawn takes when the server is half busy: sent at half the rate it reaches, on a schedule of its own."""

from __future__ import annotations

import msgspec

from bench.asks import spawns
from bench.load import as_run, child, order
from bench.meter import Meter
from bench.orders import OpenTally
from bench.results import Figure, Findings, Line, Run
from bench.spawning import SUBJECTS, Spawning
from bench.stage import Stage

CONNECTIONS = 256
"""More than are ever needed at once, so that it is the server that makes a request wait and not the sender."""
MOST_MS = 25.0


def measure(stage: Stage) -> Findings:
    lines: dict[str, list[Run]] = {}
    notes = [
        "Latency runs from the instant a request was due, not from the instant it was sent; the schedule does not wait "
        "for answers. The rate reached is measured right before, on the same server, with 64 connections."
    ]
    for subject in SUBJECTS:
        tallies = []
        for _ in range(stage.plan.rounds):
            with stage.fresh(subject.engine) as target:
                run, tally = _at_half(stage, Spawning(stage, target), subject.zones)
            lines.setdefault(subject.name, []).append(run)
            tallies.append(tally)
        notes.append(f"{subject.name}: {_tail(tallies)}")
    return Findings(
        "Latency at half the rate reached (open loop)",
        lines=[Line(name, runs) for name, runs in lines.items()],
        figures=[
            Figure(f"p99 at half the rate, {name}", [run.p99_ms or 0.0 for run in runs], "ms", MOST_MS, at_most=True)
            for name, runs in lines.items()
        ],
        notes=notes,
    )


def _at_half(stage: Stage, spawning: Spawning, zones: int) -> tuple[Run, OpenTally]:
    rate = spawning.run(zones).rate / 2
    named = spawning.new_zones(zones)
    tallies: list[OpenTally] = []

    def send() -> Run:
        meter = Meter(spawning.target.watched)
        told = order(spawning.target, spawns(named), CONNECTIONS, stage.plan.seconds, rate)
        tally = msgspec.json.decode(child("bench.openloop", told), type=OpenTally)
        tallies.append(tally)
        return as_run(tally, meter.stop())

    # It waits for its last answer: nothing is under way when it ends, and the numbers must agree exactly.
    return spawning.checked(named, 0, send), tallies[0]


def _tail(tallies: list[OpenTally]) -> str:
    worst = max(tallies, key=lambda tally: tally.p99_ms)
    late, waited = max(t.late_p99_ms for t in tallies), sum(t.waited for t in tallies)
    return (
        f"in the worst round p99.9 was {worst.p999_ms:.1f} ms and the longest {worst.max_ms:.1f} ms. Up to {late:.1f} "
        f"ms of p99 are the sender's own grain; {waited} requests found all {CONNECTIONS} connections taken."
    )
