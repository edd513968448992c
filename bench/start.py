"""How long a call takes to reach an idle worker: from just before it is sent to the response of the waiting claim."""

from __future__ import annotations

import msgspec

from bench import invocation_counts
from bench.child_types import ServerAddress, StartConfig, StartResult
from bench.enqueue_runner import create_service
from bench.load import run_child
from bench.request_bodies import invocation_body
from bench.results import Figure, Findings, Line, Run, latency_run
from bench.start_timer import TIMEOUT_SECONDS, WARM_ROUNDS
from bench.testbed import Target, Testbed

MAX_MS = 3.0
ROUNDS_MAX = 300
ROUNDS_PER_SECOND = 40
"""Rounds per second of a run: each round first waits until the server is idle."""
POSTGRESQL, SQLITE = "PostgreSQL", "SQLite"
ACROSS_REPLICAS = "PostgreSQL, across replicas"


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(testbed.plan.rounds):
        for engine in (POSTGRESQL, SQLITE):
            with testbed.start_fresh_server(engine) as target:
                runs.setdefault(engine, []).append(_measure_rounds(testbed, target, target))
        with (
            testbed.new_database() as database,
            testbed.start_server(database) as caller_target,
            testbed.start_server(database) as claimer_target,
        ):
            runs.setdefault(ACROSS_REPLICAS, []).append(_measure_rounds(testbed, caller_target, claimer_target))
    return Findings(
        "From a call to its start on an idle worker",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            _figure("p50", POSTGRESQL, [run.p50_ms for run in runs[POSTGRESQL]], MAX_MS),
            _figure("p99", POSTGRESQL, [run.p99_ms for run in runs[POSTGRESQL]]),
            *(_figure("p50", name, [run.p50_ms for run in runs[name]]) for name in (SQLITE, ACROSS_REPLICAS)),
        ],
        notes=[
            "One call at a time: a long-polling claim waits and the server is idle. The time runs from just before the "
            "call is sent until the response of the claim has been read, on one clock. The call and its delivery to "
            "the claim are one durable commit.",
            "Across replicas one server commits the call, and the claim waits at another, which gets a wake-up and "
            "queries the database.",
            f"{_round_count(testbed)} rounds per run, after {WARM_ROUNDS} that are not counted. Each claim must return "
            "exactly the call that was made, and each call must be done once.",
        ],
    )  # fmt: skip


def _figure(percentile_name: str, scenario: str, measured: list[float | None], limit: float | None = None) -> Figure:
    values = [value for value in measured if value is not None]
    return Figure(f"{percentile_name} from call to start, {scenario}", values, "ms", limit, at_most=True)


def _round_count(testbed: Testbed) -> int:
    return min(ROUNDS_MAX, int(ROUNDS_PER_SECOND * testbed.plan.seconds))


def _measure_rounds(testbed: Testbed, caller_target: Target, claimer_target: Target) -> Run:
    service, rounds = create_service(caller_target, "start"), _round_count(testbed)
    config = StartConfig(
        _to_address(caller_target),
        _to_address(claimer_target),
        service.zone,
        service.id,
        invocation_body(service.id),
        rounds,
    )
    testbed.flush_to_disk()
    output = run_child("bench.start_timer", config, (rounds + WARM_ROUNDS) * 0.5 + TIMEOUT_SECONDS)
    times = sorted(msgspec.json.decode(output, type=StartResult).seconds)
    invocation_counts.check_completed(
        invocation_counts.count_invocations(caller_target, service.zone), rounds + WARM_ROUNDS, 0
    )
    return latency_run(times)


def _to_address(target: Target) -> ServerAddress:
    return ServerAddress(*target.address, target.token)
