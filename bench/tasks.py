"""No-op tasks of one worker process, compared with other queues: from the first start to the last durable completion.

All tasks are created first, in bulk if the queue supports it. Then one worker process does all of them. The times of
the first start and the last completion are in the database: PgQueuer and Procrastinate store them, as Quarterdeck does.
The queues on Redis store no times, so their workers record when each job started, and the starts are counted.
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
STARTS_LABEL = "starts, measured in its worker"


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
        "No-op tasks by one worker process, compared with other queues",
        lines=[
            *(Line(name, line_runs) for name, line_runs in included_runs.items()),
            *(Line(f"{name}, {STARTS_LABEL}", line_runs) for name, line_runs in start_runs.items()),
        ],
        figures=[
            *ratios_to_best_peer("Tasks done, Quarterdeck / the best peer", included_runs, comparison,
                                 Figure("", [], "×", MIN_RATIO, GOAL_RATIO)),
            Figure("Tasks done, SQLite", [run.rate for run in included_runs[our_name("SQLite")]], "tasks/s"),
        ],
        notes=[
            f"Tasks of 200 bytes, about as many as take {testbed.plan.seconds:g} s, created {BULK_SIZE:,} per call; "
            "then one worker process. The rate counts durable completions, from the first start to the last "
            "completion, by the database's clock. PgQueuer gathers completions and writes them later: its log counts. "
            "For the queues on Redis the starts count, because completions are not recorded.",
            "Peers with an event loop run on uvloop, with the batch sizes that suit them best; Quarterdeck's worker "
            "runs on the event loop of `TaskWorker.main`. Redis writes its log without syncing it.",
            "Quarterdeck's server has its own column; the share of a peer is all in “load generator”.",
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
        problem = f"{candidate.name} did {completed.count} of {count} tasks"
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
