"""`python -m bench [names…]`: runs what is named, or everything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from bench import (
    agents,
    audit,
    cascade,
    claims,
    cli,
    connections,
    delegations,
    growth,
    idle,
    invocations,
    latency,
    live,
    machine,
    making,
    matching,
    messages,
    pickup,
    replicas,
    report,
    results,
    shell,
    spawn,
    start,
    streams,
    sweeps,
    tasks,
    walls,
    work,
)
from bench.load import generator
from bench.plan import ROOT, BenchError, Plan, plan
from bench.results import Findings, Part
from bench.stage import Stage
from tests.support.children import terminated_is_interrupted

MEASUREMENTS: Mapping[str, Callable[[Stage], Findings]] = {
    "spawn": spawn.measure,
    "connections": connections.measure,
    "growth": growth.measure,
    "latency": latency.measure,
    "replicas": replicas.measure,
    "walls": walls.measure,
    "cascade": cascade.measure,
    "live": live.measure,
    "streams": streams.measure,
    "invocations": invocations.measure,
    "work": work.measure,
    "start": start.measure,
    "delegations": delegations.measure,
    "sweeps": sweeps.measure,
    "tasks": tasks.measure,
    "making": making.measure,
    "pickup": pickup.measure,
    "agents": agents.measure,
    "matching": matching.measure,
    "claims": claims.measure,
    "messages": messages.measure,
    "shell": shell.measure,
    "cli": cli.measure,
    "idle": idle.measure,
    "audit": audit.measure,
}


def main(names: list[str]) -> int:
    known = [*MEASUREMENTS, "report"]
    if unknown := [name for name in names if name not in known]:
        print(f"bench: {', '.join(unknown)}? There are: {' '.join(known)}.", file=sys.stderr)
        return 2
    if not sys.platform.startswith("linux"):
        print("bench: the shares of the processors are read from /proc, which only Linux has.", file=sys.stderr)
        return 1
    terminated_is_interrupted()
    try:
        _measure([name for name in MEASUREMENTS if not names or name in names], plan())
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; what had been measured by then is kept.", file=sys.stderr)
        return 130
    if not names or "report" in names:
        for file in report.write(results.read()):
            print(f"wrote {file.relative_to(ROOT)}")
    return 0


def _measure(names: list[str], how: Plan) -> None:
    if not names:
        return
    with Stage(how) as stage:
        for name in names:
            print(f"\n== {name}", flush=True)
            part = _part(MEASUREMENTS[name](stage), how)
            # Kept one by one: whoever is interrupted, or meets a failure, keeps what was measured before.
            kept = results.read()
            kept.machine |= {**machine.describe(), "load generator": generator()}
            if stage.uses_postgres:
                kept.machine["PostgreSQL"] = stage.postgres_version()
            if stage.uses_redis:
                kept.machine["Redis"] = stage.redis_version()
            kept.parts[name] = part
            kept.parts = {known: kept.parts[known] for known in MEASUREMENTS if known in kept.parts}
            results.write(kept)
            print(report.as_text(part), flush=True)


def _part(found: Findings, how: Plan) -> Part:
    return Part(
        title=found.title,
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=machine.commit(),
        seconds=how.seconds,
        rounds=how.rounds,
        lines=found.lines,
        figures=found.figures,
        curves=found.curves,
        axis=found.axis,
        notes=found.notes,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
