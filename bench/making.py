"""Making tasks, beside other queues: one by one by twenty callers at once, and many in one call."""

from __future__ import annotations

import msgspec

from bench.asks import task_body
from bench.load import Requests, drive
from bench.meter import Meter
from bench.peers.contest import PEERS, Contest, Contestant, Place, ours_on
from bench.peers.judging import best_ratios
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage

CALLERS = 20
ENQUEUE_LEAST = 2.0
EACH = 1_000
BULK_LEAST, BULK_GOAL = 0.5, 1.0
FIRST, MOST = 400, 100_000
RAW = f"Quarterdeck, PostgreSQL, one by one by {CALLERS} connections of the load generator"
ON_POSTGRESQL = ours_on("PostgreSQL")
Runs = dict[str, list[Run]]


def measure(stage: Stage) -> Findings:
    contest = Contest.of(*PEERS)
    single: Runs = {}
    bulk: Runs = {}
    raw: list[Run] = []

    def one(who: Contestant) -> None:
        with who.place(stage) as place:
            enqueued = _run(stage, who, place, "enqueue", callers=CALLERS)
            made = _run(stage, who, place, "bulk", each=EACH) if who.has_bulk else None
        single.setdefault(who.name, []).append(enqueued)
        if made is not None:
            bulk.setdefault(who.name, []).append(made)
        if who.name == ON_POSTGRESQL:
            raw.append(_raw(stage))

    contest.rounds(stage, one)
    single, bulk = ({name: found for name, found in runs.items() if contest.has(name)} for runs in (single, bulk))
    return Findings(
        "Making tasks, beside other queues",
        lines=[
            *(Line(f"{name}, one by one by {CALLERS} callers", found) for name, found in single.items()),
            Line(RAW, raw),
            *(Line(f"{name}, {EACH:,} in a call", found) for name, found in bulk.items()),
        ],
        figures=[
            *best_ratios(
                f"Enqueued by {CALLERS} callers, Quarterdeck / the best peer",
                single,
                contest,
                Figure("", [], "×", ENQUEUE_LEAST),
            ),
            *best_ratios(
                f"The same by {CALLERS} connections of the load generator",
                {**single, ON_POSTGRESQL: raw},
                contest,
                Figure("", [], "×"),
            ),
            *best_ratios(
                "Made in bulk, Quarterdeck / the best peer",
                bulk,
                contest,
                Figure("", [], "×", BULK_LEAST, BULK_GOAL),
            ),
        ],
        notes=[
            "Tasks of 200 bytes, each call answered when they are durable; about as many as take "
            f"{stage.plan.seconds:g} s. One by one: one process with {CALLERS} callers at once, each waiting for its "
            "own; ours by the SDK's client, which pays for HTTP, an idempotency key and an answer that is read. "
            "In bulk: one call after the other.",
            "The load generator's requests bear no idempotency key; it takes less of the machine than any client does, "
            "so its figure is told beside and not judged.",
            *contest.notes,
        ],
    )  # fmt: skip


def _run(stage: Stage, who: Contestant, place: Place, verb: str, **how: int) -> Run:
    """About as many as can be made in the time, which a few tell before."""
    rate = FIRST / _seconds(who, verb, url=place.url(), number=FIRST, **how)
    number = int(min(MOST, max(FIRST, rate * stage.plan.seconds)))
    stage.settle()
    url, meter = place.url(), Meter(place.watched)
    seconds = _seconds(who, verb, url=url, number=number, **how)
    usage = meter.stop()
    return Run(
        rate=number / seconds,
        count=number,
        seconds=seconds,
        server_us=usage.server_seconds / number * 1e6 if usage.server_seconds is not None else None,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )


def _seconds(who: Contestant, verb: str, **told: str | int) -> float:
    return msgspec.convert(who.do(verb, **told)["seconds"], float)


def _raw(stage: Stage) -> Run:
    requests = Requests(["/api/v1/agent-tasks"], "POST", task_body())
    with stage.fresh("PostgreSQL") as target:
        drive(target, requests, CALLERS, stage.plan.warm_up)
        stage.settle()
        return drive(target, requests, CALLERS, stage.plan.seconds)
