"""How soon a task reaches a worker that has nothing else to do, beside other queues: from just before it is made, in
one process, to the beginning of its function in another, on the clock that both share."""

from __future__ import annotations

import statistics

import msgspec

from bench.peers.contest import PEERS, Contest, Contestant, Place, ours_on
from bench.peers.driver import PAUSE_SECONDS
from bench.peers.judging import best_ratios
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage
from bench.wire import percentile

WARM_ROUNDS = 10
AGAINST = "PgQueuer"


def measure(stage: Stage) -> Findings:
    contest = Contest.of(*PEERS)
    runs: dict[str, list[Run]] = {}
    number = max(20, int(stage.plan.seconds / statistics.fmean(PAUSE_SECONDS)))

    def one(who: Contestant) -> None:
        with who.place(stage) as place:
            stage.settle()
            runs.setdefault(who.name, []).append(_rounds(who, place, number))

    contest.rounds(stage, one)
    runs = {name: found for name, found in runs.items() if contest.has(name)}
    contest.peers = [peer for peer in contest.peers if peer.name.startswith(AGAINST)]
    asked = Figure("", [], "×", 1.0, at_most=True)
    return Findings(
        "From making a task to the start of its work, on an idle worker, beside other queues",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            *best_ratios(f"p50 from making to start, Quarterdeck / {AGAINST}", runs, contest, asked, "p50_ms"),
            *(
                Figure(f"p50 from making to start, {name}", [run.p50_ms or 0.0 for run in found], "ms", at_most=True)
                for name, found in runs.items()
                if name in (ours_on("PostgreSQL"), ours_on("SQLite")) or name.startswith(AGAINST)
            ),
        ],
        notes=[
            f"One at a time, {number} in a run after {WARM_ROUNDS} that are not counted, each after a pause of "
            f"{PAUSE_SECONDS[0] * 1e3:g} to {PAUSE_SECONDS[1] * 1e3:g} ms in which everything comes to rest.",
            *contest.notes,
        ],
    )  # fmt: skip


def _rounds(who: Contestant, place: Place, number: int) -> Run:
    url, number = place.url(), number + WARM_ROUNDS
    with who.doing("work", url=url, number=number) as work:
        work.until_ready()
        sent = msgspec.convert(who.do("starts", url=url, number=number)["sent"], dict[str, float])
        started = msgspec.convert(work.tally()["started"], dict[str, float])
    times = sorted(started[name] - at for name, at in sent.items() if int(name) >= WARM_ROUNDS)
    return Run(
        rate=1 / statistics.fmean(times),
        count=len(times),
        seconds=sum(times),
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
    )
