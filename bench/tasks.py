"""No-op tasks worked off by one worker process, beside other queues: from the first that was begun to the last that is
durably done.

Everything is made before, in bulk where there is bulk. Then one worker process is started and works all of it off. When
the first was begun and the last was done is in the database's own rows: PgQueuer and Procrastinate write it down as we
do. Of the queues on Redis only the worker knows, and what it knows is when a job began; that is counted for them.
"""

from __future__ import annotations

import msgspec

from bench.meter import Meter
from bench.peers.contest import PEERS, Contest, Contestant, Done, Place, now, ours_on
from bench.peers.environment import Unavailable
from bench.peers.judging import best_ratios
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage

LEAST, GOAL = 1.0, 1.5
EACH = 1_000
CALLERS = 20
FIRST, MOST = 500, 60_000
STARTS = "starts, as its worker sees them"


def measure(stage: Stage) -> Findings:
    contest = Contest.of(*PEERS)
    runs: dict[str, list[Run]] = {}
    begun: dict[str, list[Run]] = {}

    def one(who: Contestant) -> None:
        with who.place(stage) as place:
            rate = _worked(who, place, FIRST)[0].rate
            stage.settle()
            number = int(min(MOST, max(FIRST, rate * stage.plan.seconds)))
            run, starts = _worked(who, place, number)
        runs.setdefault(who.name, []).append(run)
        if not who.is_ours and who.is_judged:
            begun.setdefault(who.name, []).append(starts)

    contest.rounds(stage, one)
    shown, begun = ({name: each[name] for name in each if contest.has(name)} for each in (runs, begun))
    return Findings(
        "No-op tasks by one worker process, beside other queues",
        lines=[
            *(Line(name, found) for name, found in shown.items()),
            *(Line(f"{name}, {STARTS}", found) for name, found in begun.items()),
        ],
        figures=[
            *best_ratios("Tasks done, Quarterdeck / the best peer", shown, contest, Figure("", [], "×", LEAST, GOAL)),
            Figure("Tasks done, SQLite", [run.rate for run in shown[ours_on("SQLite")]], "tasks/s"),
        ],
        notes=[
            f"Tasks of 200 bytes, about as many as take {stage.plan.seconds:g} s, made before in bulk of {EACH:,}; "
            "then one worker process. The rate is of what is durably done, from the first that was begun to the last "
            "that was done, by the database's clock. PgQueuer gathers completions and writes them down later: what "
            "counts is its log. For the queues on Redis what counts is when a job began, since nothing tells when "
            "it was done.",
            "Peers that have a loop run on uvloop, with batches as large as help them; Quarterdeck's "
            "worker runs on the loop that `TaskWorker.main` runs on. Redis writes its log and does not sync it.",
            "A server works beside Quarterdeck's worker, and its share is shown apart; a peer's share is all “load "
            "generator”.",
            *contest.notes,
        ],
    )  # fmt: skip


def _worked(who: Contestant, place: Place, number: int) -> tuple[Run, Run]:
    url = place.url()
    if who.has_bulk:
        who.do("bulk", url=url, number=number, each=EACH)
    else:
        who.do("enqueue", url=url, number=number, callers=CALLERS)
    since, meter = now(), Meter(place.watched)
    told = who.do("work", url=url, number=number)
    usage = meter.stop()
    starts = _starts(told)
    done = place.done(url, since) if place.done else starts
    if done.count < number or not done.seconds:
        wrong = f"{who.name} was to do {number} and did {done.count}"
        raise BenchError(wrong) if who.is_ours else Unavailable(wrong)
    run = Run(
        rate=done.count / done.seconds,
        count=done.count,
        seconds=done.seconds,
        server_us=usage.server_seconds / done.count * 1e6 if usage.server_seconds is not None else None,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )
    return run, Run(rate=starts.count / starts.seconds, count=starts.count, seconds=starts.seconds)


def _starts(told: dict[str, object]) -> Done:
    at = msgspec.convert(told["started"], dict[str, float])
    return Done(len(at), max(at.values()) - min(at.values()))
