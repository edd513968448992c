"""No-op tasks worked off by one worker process, beside other queues: from the first that was begun to the last that is
durably done.

Everything is made before, in bulk where there is bulk. Then one worker process is started and works all of it off. When
the first was begun and the last was done is in the database's own rows: PgQueuer and Procrastinate write it down as we
do. Of the queues on Redis only the worker knows, and what it knows is when a job began; that is counted for them.
"""

from __future__ import annotations

import msgspec

from bench.meter import CpuMeter
from bench.peers.comparison import PEER_NAMES, Candidate, Comparison, CompletedWork, QueueBackend, now, our_name
from bench.peers.ratios import ratios_to_best_peer
from bench.peers.virtualenvs import PeerUnavailable
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Testbed

MIN_RATIO, GOAL_RATIO = 1.0, 1.5
BULK_SIZE = 1_000
CALLERS = 20
CALIBRATION_TASKS, MAX_TASKS = 500, 60_000
STARTS_LABEL = "starts, as its worker sees them"


def measure(testbed: Testbed) -> Findings:
    comparison = Comparison.create(*PEER_NAMES)
    runs: dict[str, list[Run]] = {}
    start_runs: dict[str, list[Run]] = {}

    def measure_candidate(candidate: Candidate) -> None:
        with candidate.open_backend(testbed) as backend:
            rate = _measure_work(candidate, backend, CALIBRATION_TASKS)[0].rate
            testbed.flush_to_disk()
            count = int(min(MAX_TASKS, max(CALIBRATION_TASKS, rate * testbed.plan.seconds)))
            run, starts = _measure_work(candidate, backend, count)
        runs.setdefault(candidate.name, []).append(run)
        if not candidate.is_ours and candidate.is_baseline:
            start_runs.setdefault(candidate.name, []).append(starts)

    comparison.run_rounds(testbed, measure_candidate)
    included_runs, start_runs = (
        {name: runs_by_name[name] for name in runs_by_name if comparison.is_included(name)}
        for runs_by_name in (runs, start_runs)
    )
    return Findings(
        "No-op tasks by one worker process, beside other queues",
        lines=[
            *(Line(name, found) for name, found in included_runs.items()),
            *(Line(f"{name}, {STARTS_LABEL}", found) for name, found in start_runs.items()),
        ],
        figures=[
            *ratios_to_best_peer("Tasks done, Quarterdeck / the best peer", included_runs, comparison, Figure("", [], "×", MIN_RATIO, GOAL_RATIO)),
            Figure("Tasks done, SQLite", [run.rate for run in included_runs[our_name("SQLite")]], "tasks/s"),
        ],
        notes=[
            f"Tasks of 200 bytes, about as many as take {testbed.plan.seconds:g} s, made before in bulk of {BULK_SIZE:,}; "
            "then one worker process. The rate is of what is durably done, from the first that was begun to the last "
            "that was done, by the database's clock. PgQueuer gathers completions and writes them down later: what "
            "counts is its log. For the queues on Redis what counts is when a job began, since nothing tells when "
            "it was done.",
            "Peers that have a loop run on uvloop, with batches as large as help them; Quarterdeck's "
            "worker runs on the loop that `TaskWorker.main` runs on. Redis writes its log and does not sync it.",
            "A server works beside Quarterdeck's worker, and its share is shown apart; a peer's share is all “load "
            "generator”.",
            *comparison.notes,
        ],
    )  # fmt: skip


def _measure_work(candidate: Candidate, backend: QueueBackend, count: int) -> tuple[Run, Run]:
    url = backend.new_url()
    if candidate.has_bulk:
        candidate.run_verb("bulk", url=url, number=count, bulk_size=BULK_SIZE)
    else:
        candidate.run_verb("enqueue", url=url, number=count, callers=CALLERS)
    since, meter = now(), CpuMeter(backend.watched)
    response = candidate.run_verb("work", url=url, number=count)
    usage = meter.stop()
    starts = _to_starts(response)
    completed = backend.count_completed(url, since) if backend.count_completed else starts
    if completed.count < count or not completed.seconds:
        problem = f"{candidate.name} was to do {count} and did {completed.count}"
        raise BenchError(problem) if candidate.is_ours else PeerUnavailable(problem)
    run = Run(
        rate=completed.count / completed.seconds,
        count=completed.count,
        seconds=completed.seconds,
        server_us=usage.server_seconds / completed.count * 1e6 if usage.server_seconds is not None else None,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )
    return run, Run(rate=starts.count / starts.seconds, count=starts.count, seconds=starts.seconds)


def _to_starts(response: dict[str, object]) -> CompletedWork:
    started_at = msgspec.convert(response["started"], dict[str, float])
    return CompletedWork(len(started_at), max(started_at.values()) - min(started_at.values()))
