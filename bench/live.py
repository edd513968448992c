"""How long an event takes from its commit to those who listen, with 200 streams open on the zone that is written to."""

from __future__ import annotations

import msgspec

from bench.asks import spawns
from bench.beside import beside
from bench.load import GRACE_SECONDS, Requests, as_run, child, order
from bench.meter import CORES, Meter
from bench.orders import LiveTally, OpenTally
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.spawning import Spawning
from bench.stage import Stage

LISTENERS = 200
RATE = 200
CONNECTIONS = 64
MOST_MS = 50.0
ENGINES = ("PostgreSQL", "SQLite")


def measure(stage: Stage) -> Findings:
    lines: dict[str, list[Run]] = {}
    longest = 0.0
    for engine in ENGINES:
        for _ in range(stage.plan.rounds):
            with stage.fresh(engine) as target:
                run, tally = _listened_to(stage, Spawning(stage, target))
            lines.setdefault(engine, []).append(run)
            longest = max(longest, tally.max_ms)
    return Findings(
        f"From commit to {LISTENERS} listeners",
        lines=[Line(f"{engine}, events received", runs) for engine, runs in lines.items()],
        figures=[
            Figure(
                f"p99 from commit to {LISTENERS} listeners, {engine}",
                [run.p99_ms or 0.0 for run in runs],
                "ms",
                MOST_MS,
                at_most=True,
            )
            for engine, runs in lines.items()
        ],
        notes=[
            f"{RATE} spawns a second into one zone, sent on a schedule; {LISTENERS} streams follow that zone, all in "
            f"one process on the same machine: {RATE * LISTENERS:,} events are received each second.",
            "Percentiles are over all pairs of listener and event. Latency runs from the event's `at`, which the "
            "database's clock gave before the commit, to the moment the listener has the event: the rest of the "
            "transaction and the commit are in it, and so is the listeners' own work on each other's events.",
            f"Every listener received every event, once and in order. The longest took {longest:.0f} ms.",
        ],
    )


def _listened_to(stage: Stage, spawning: Spawning) -> tuple[Run, LiveTally]:
    [zone] = named = spawning.new_zones(1)
    seconds = stage.plan.seconds
    sending = order(spawning.target, spawns(named), CONNECTIONS, seconds, RATE)
    listening = order(spawning.target, Requests([f"/zones/{zone}/events"]), LISTENERS, seconds, RATE)
    heard: list[LiveTally] = []

    def run() -> Run:
        # They listen from before the first event to the last.
        with beside("bench.listeners", listening) as listeners:
            meter = Meter(spawning.target.watched)
            sent = msgspec.json.decode(child("bench.openloop", sending), type=OpenTally)
            heard.append(msgspec.json.decode(listeners.answer(seconds + GRACE_SECONDS), type=LiveTally))
        return as_run(sent, meter.stop())

    spawned = spawning.checked(named, 0, run)
    [tally] = heard
    if tally.refused or tally.lost:
        raise BenchError(
            f"{tally.refused} events came out of order or twice, and {tally.lost} of {LISTENERS} listeners did not "
            "hear of everything. What is lost has no latency."
        )
    return msgspec.structs.replace(
        spawned,
        rate=tally.count / tally.seconds,
        count=tally.count,
        server_us=None,
        load=(spawned.load or 0.0) + (tally.cpu_seconds or 0.0) / tally.seconds / CORES,
        p50_ms=tally.p50_ms,
        p99_ms=tally.p99_ms,
    ), tally
