"""How soon a call reaches a worker that has nothing else to do: from just before it is sent to the claim's answer."""

from __future__ import annotations

import statistics

import msgspec

from bench import calls
from bench.asks import call_body
from bench.enqueuing import new_service
from bench.load import run_alone
from bench.orders import Place, StartOrder, StartTally
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target
from bench.starts import PATIENCE_SECONDS, WARM_ROUNDS
from bench.wire import percentile

MOST_MS = 3.0
ROUNDS_MAX = 300
ROUNDS_EACH_SECOND = 40
"""Of what a run may take: one round waits for quiet."""
ONE, LITE = "PostgreSQL", "SQLite"
ACROSS = "PostgreSQL, across replicas"


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        for engine in (ONE, LITE):
            with stage.fresh(engine) as target:
                runs.setdefault(engine, []).append(_rounds(stage, target, target))
        with stage.database() as database, stage.server(database) as called, stage.server(database) as claimed:
            runs.setdefault(ACROSS, []).append(_rounds(stage, called, claimed))
    return Findings(
        "From a call to the start of its work, on an idle worker",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            _figure("p50", ONE, [run.p50_ms for run in runs[ONE]], MOST_MS),
            _figure("p99", ONE, [run.p99_ms for run in runs[ONE]]),
            *(_figure("p50", name, [run.p50_ms for run in runs[name]]) for name in (LITE, ACROSS)),
        ],
        notes=[
            "One at a time: a long-polling claim waits, everything has been quiet for a while, and the time runs from "
            "just before the call is sent to the moment the claim's answer has been read, on one clock. The call and "
            "its handing over are one durable commit.",
            "Across replicas the call is committed by one server, and the claim waits at another, which is woken and "
            "asks the database.",
            f"{_number(stage)} rounds each time, after {WARM_ROUNDS} that are not counted. Each claim had to give "
            "exactly the call that was made, and each call to be done once.",
        ],
    )  # fmt: skip


def _figure(part: str, where: str, found: list[float | None], most: float | None = None) -> Figure:
    values = [value for value in found if value is not None]
    return Figure(f"{part} from call to start, {where}", values, "ms", most, at_most=True)


def _number(stage: Stage) -> int:
    return min(ROUNDS_MAX, int(ROUNDS_EACH_SECOND * stage.plan.seconds))


def _rounds(stage: Stage, called: Target, claimed: Target) -> Run:
    service, number = new_service(called, "start"), _number(stage)
    told = StartOrder(_place(called), _place(claimed), service.zone, service.id, call_body(service.id), number)
    stage.settle()
    said = run_alone("bench.starts", told, (number + WARM_ROUNDS) * 0.5 + PATIENCE_SECONDS)
    times = sorted(msgspec.json.decode(said, type=StartTally).seconds)
    calls.check_done(calls.held(called, service.zone), number + WARM_ROUNDS, 0)
    return Run(
        rate=1 / statistics.fmean(times),
        count=len(times),
        seconds=sum(times),
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
    )


def _place(target: Target) -> Place:
    return Place(*target.address, target.token)
