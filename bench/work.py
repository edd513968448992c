"""Work from end to end: callers enqueue, a worker made with the SDK claims and completes, and the database says when.

So many connections enqueue as fast as they are answered, for half as long as other runs take; the worker, a process of
its own, serves meanwhile and to the end. What is divided is the number of all calls by the time from the first call to
the last durable completion, so what gathered while the callers were faster than the worker is paid for.
"""

from __future__ import annotations

import time

import msgspec

from bench import calls
from bench.asks import APPLICATION, METHOD, calls as called
from bench.beside import beside
from bench.enqueuing import CONNECTIONS, ENQUEUES
from bench.load import GRACE_SECONDS, as_run, send
from bench.meter import CORES, Meter
from bench.observed import check as check_answers, observe
from bench.orders import WorkOrder, WorkTally
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage, Target

CONCURRENCY = 64
ENGINES = ("PostgreSQL", "SQLite")
LOOK_SECONDS = 0.25
LAST_SECONDS = 120.0
"""For what is left when the callers have gone."""


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    notes: list[str] = []
    for engine in ENGINES:
        spans = []
        for _ in range(stage.plan.rounds):
            with stage.fresh(engine) as target:
                flow(stage, target, "warm", stage.plan.warm_up)
                run, span = flow(stage, target, "work", max(1.0, stage.plan.seconds / 2))
            runs.setdefault(engine, []).append(run)
            spans.append(span)
        notes.append(f"{engine}: {_while_called(spans)}")
    return Findings(
        "Invocations from end to end, with the SDK's worker",
        lines=[Line(f"enqueued, claimed and completed, {engine}", found) for engine, found in runs.items()],
        figures=[
            Figure(f"Enqueued, claimed and completed, {engine}", [run.rate for run in found], "invocations/s")
            for engine, found in runs.items()
        ],
        notes=[
            f"{CONNECTIONS} connections enqueue, and one worker with a concurrency of {CONCURRENCY} claims, runs a "
            "method that gives back its params, and completes. Counted is what is durably completed, over the time "
            "from the first call to the last completion, both by the database's clock.",
            "Each must have been done once, at its first attempt, with its result and three events. The share of the "
            "load generator is the callers' and the worker's.",
            *notes,
        ],
    )  # fmt: skip


def flow(stage: Stage, target: Target, name: str, seconds: float) -> tuple[Run, calls.Span]:
    [zone] = target.zones(name, 1)
    told = WorkOrder(target.url, target.token, zone, APPLICATION, METHOD, CONCURRENCY)
    with beside("bench.worker", told) as worker:
        stage.settle()
        observed, meter, began = observe(target, ENQUEUES), Meter(target.watched), time.perf_counter()
        sent = send(target, called(zone, worker.said), CONNECTIONS, seconds)
        _until_done(target, zone)
        usage, lasted = meter.stop(), time.perf_counter() - began
        new = observe(target, ENQUEUES).since(observed)
        tally = msgspec.json.decode(worker.answer(GRACE_SECONDS), type=WorkTally)
    found = calls.held(target, zone)
    calls.check_done(found, sent.count, CONNECTIONS)
    check_answers(new, sent.count, CONNECTIONS)
    span = calls.span(target, zone)
    assert usage.server_seconds is not None
    return msgspec.structs.replace(
        as_run(sent, usage),
        rate=found.done / span.seconds,
        count=found.done,
        seconds=span.seconds,
        server_us=usage.server_seconds / found.done * 1e6,
        load=usage.load + tally.cpu_seconds / lasted / CORES,
        p50_ms=None,
        p99_ms=None,
        per_commit=new.commands / max(1, new.batches),
    ), span


def _until_done(target: Target, zone: str) -> None:
    """When exactly the last was done is in its row; here it is enough to see that it was."""
    latest = time.monotonic() + LAST_SECONDS
    while left := calls.are_open(target, zone):
        if time.monotonic() > latest:
            raise BenchError(f"{left} calls were still open {LAST_SECONDS:.0f} s after the last was made.")
        time.sleep(LOOK_SECONDS)


def _while_called(spans: list[calls.Span]) -> str:
    meanwhile = [span.done_meanwhile / span.calling_seconds for span in spans]
    made = [span.made / span.calling_seconds for span in spans]
    return (
        f"while the callers called, {_range(made)} a second were enqueued and {_range(meanwhile)} completed; the rest "
        "was completed when they had gone."
    )


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if len(values) == 1 else f"{low:,.0f} – {high:,.0f}"
