"""`python -m bench [names…]`: runs the named measurements, or all of them."""

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
    http_overhead,
    idle,
    invocations,
    latency,
    machine,
    matching,
    messages,
    pickup,
    replicas,
    report,
    results,
    row_security,
    spawn,
    sse_latency,
    start,
    streams,
    sweeps,
    task_creation,
    tasks,
    work,
)
from bench.load import generator_name
from bench.plan import ROOT, BenchError, Plan, load_plan
from bench.results import Findings, Part
from bench.testbed import Testbed
from tests.support.child_processes import interrupt_on_sigterm

MEASUREMENTS: Mapping[str, Callable[[Testbed], Findings]] = {
    "spawn": spawn.measure,
    "connections": connections.measure,
    "growth": growth.measure,
    "latency": latency.measure,
    "replicas": replicas.measure,
    "walls": row_security.measure,
    "cascade": cascade.measure,
    "live": sse_latency.measure,
    "streams": streams.measure,
    "invocations": invocations.measure,
    "work": work.measure,
    "start": start.measure,
    "delegations": delegations.measure,
    "sweeps": sweeps.measure,
    "tasks": tasks.measure,
    "making": task_creation.measure,
    "pickup": pickup.measure,
    "agents": agents.measure,
    "matching": matching.measure,
    "claims": claims.measure,
    "messages": messages.measure,
    "shell": http_overhead.measure,
    "cli": cli.measure,
    "idle": idle.measure,
    "audit": audit.measure,
}


def main(names: list[str]) -> int:
    choices = [*MEASUREMENTS, "report"]
    if unknown := [name for name in names if name not in choices]:
        print(f"bench: unknown measurement {', '.join(unknown)}. Known: {' '.join(choices)}.", file=sys.stderr)
        return 2
    if not sys.platform.startswith("linux"):
        print("bench: needs Linux, because CPU shares are read from /proc.", file=sys.stderr)
        return 1
    interrupt_on_sigterm()
    try:
        _measure([name for name in MEASUREMENTS if not names or name in names], load_plan())
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; finished measurements are kept.", file=sys.stderr)
        return 130
    if not names or "report" in names:
        for path in report.write(results.read_results()):
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


def _measure(names: list[str], plan: Plan) -> None:
    if not names:
        return
    with Testbed(plan) as testbed:
        for name in names:
            print(f"\n== {name}", flush=True)
            part = _to_part(MEASUREMENTS[name](testbed), plan)
            # Written after each measurement: an interruption or a failure does not lose the earlier ones.
            stored = results.read_results()
            stored.machine |= {**machine.describe(), "load generator": generator_name()}
            if testbed.uses_postgres:
                stored.machine["PostgreSQL"] = testbed.postgres_version()
            if testbed.uses_redis:
                stored.machine["Redis"] = testbed.redis_version()
            stored.parts[name] = part
            stored.parts = {measured: stored.parts[measured] for measured in MEASUREMENTS if measured in stored.parts}
            results.write_results(stored)
            print(report.part_to_text(part), flush=True)


def _to_part(findings: Findings, plan: Plan) -> Part:
    return Part(
        title=findings.title,
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=machine.describe_commit(),
        seconds=plan.seconds,
        rounds=plan.rounds,
        lines=findings.lines,
        figures=findings.figures,
        curves=findings.curves,
        axis=findings.axis,
        notes=findings.notes,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
