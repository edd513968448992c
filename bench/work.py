"""Invocations end to end: callers enqueue, a worker of the SDK claims and completes; times come from the database.

The connections enqueue in a closed loop for half of a normal run, while the worker, a separate process, serves until
all calls are done. The rate is the number of calls divided by the time from the first call to the last durable
completion, so it includes the backlog that builds up if the callers are faster than the worker.
"""

from __future__ import annotations

import time

import msgspec

from bench import invocation_counts
from bench.background_process import run_in_background
from bench.child_types import WorkerConfig, WorkerResult
from bench.enqueue_runner import CONNECTIONS, ENQUEUE_TRAFFIC
from bench.load import GRACE_SECONDS, run_generator, to_run
from bench.meter import CORES, CpuMeter
from bench.plan import BenchError
from bench.request_bodies import APPLICATION, METHOD, invocation_requests
from bench.results import Figure, Findings, Line, Run
from bench.server_metrics import check_responses, read_traffic
from bench.testbed import Target, Testbed

CONCURRENCY = 64
ENGINES = ("PostgreSQL", "SQLite")
POLL_SECONDS = 0.25
COMPLETION_TIMEOUT_SECONDS = 120.0
"""For the backlog after the callers have stopped."""


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    notes: list[str] = []
    for engine in ENGINES:
        spans = []
        for _ in range(testbed.plan.rounds):
            with testbed.start_fresh_server(engine) as target:
                measure_end_to_end(testbed, target, "warm", testbed.plan.warm_up_seconds)
                run, span = measure_end_to_end(testbed, target, "work", max(1.0, testbed.plan.seconds / 2))
            runs.setdefault(engine, []).append(run)
            spans.append(span)
        notes.append(f"{engine}: {_describe_rates(spans)}")
    return Findings(
        "Invocations end to end, with the SDK's worker",
        lines=[Line(f"enqueued, claimed and completed, {engine}", line_runs) for engine, line_runs in runs.items()],
        figures=[
            Figure(f"Enqueued, claimed and completed, {engine}", [run.rate for run in line_runs], "invocations/s")
            for engine, line_runs in runs.items()
        ],
        notes=[
            f"{CONNECTIONS} connections enqueue, and one worker with a concurrency of {CONCURRENCY} claims, runs a "
            "method that returns its params, and completes. The rate counts durable completions over the time from the "
            "first call to the last completion, by the database's clock.",
            "Each call must be done once, at its first attempt, with its result and three events. The share of the "
            "load generator includes the callers and the worker.",
            *notes,
        ],
    )  # fmt: skip


def measure_end_to_end(
    testbed: Testbed, target: Target, name: str, seconds: float
) -> tuple[Run, invocation_counts.InvocationSpan]:
    [zone] = target.create_zones(name, 1)
    config = WorkerConfig(target.url, target.token, zone, APPLICATION, METHOD, CONCURRENCY)
    with run_in_background("bench.worker", config) as worker:
        testbed.flush_to_disk()
        before, meter, started_at = (
            read_traffic(target, ENQUEUE_TRAFFIC),
            CpuMeter(target.watched_processes),
            time.perf_counter(),
        )
        load_result = run_generator(target, invocation_requests(zone, worker.ready_info), CONNECTIONS, seconds)
        _wait_until_completed(target, zone)
        usage, elapsed = meter.stop(), time.perf_counter() - started_at
        delta = read_traffic(target, ENQUEUE_TRAFFIC).since(before)
        worker_result = msgspec.json.decode(worker.finish(GRACE_SECONDS), type=WorkerResult)
    counts = invocation_counts.count_invocations(target, zone)
    invocation_counts.check_completed(counts, load_result.count, CONNECTIONS)
    check_responses(delta, load_result.count, CONNECTIONS)
    span = invocation_counts.read_span(target, zone)
    assert usage.server_seconds is not None
    return msgspec.structs.replace(
        to_run(load_result, usage),
        rate=counts.completed / span.seconds,
        count=counts.completed,
        seconds=span.seconds,
        server_us=usage.server_seconds / counts.completed * 1e6,
        load=usage.load + worker_result.cpu_seconds / elapsed / CORES,
        p50_ms=None,
        p99_ms=None,
        per_commit=delta.commands / max(1, delta.batches),
    ), span


def _wait_until_completed(target: Target, zone: str) -> None:
    """Poll until no call is open. The exact time of the last completion is read from its row."""
    deadline = time.monotonic() + COMPLETION_TIMEOUT_SECONDS
    while remaining := invocation_counts.count_open(target, zone):
        if time.monotonic() > deadline:
            raise BenchError(
                f"{remaining} calls were still open {COMPLETION_TIMEOUT_SECONDS:.0f} s after the last call."
            )
        time.sleep(POLL_SECONDS)


def _describe_rates(spans: list[invocation_counts.InvocationSpan]) -> str:
    completed = [span.completed_while_calling / span.calling_seconds for span in spans]
    enqueued = [span.count / span.calling_seconds for span in spans]
    return (
        f"while the callers ran, {_format_range(enqueued)} per second were enqueued and {_format_range(completed)} "
        "completed; the rest was completed afterwards."
    )


def _format_range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if len(values) == 1 else f"{low:,.0f} – {high:,.0f}"
