"""How long a task takes to reach an idle worker, compared with other queues.

The time runs from just before the task is created in one process to the start of its function in another, on the clock
that both processes share.
"""

from __future__ import annotations

import statistics

import msgspec

from bench.peers.comparison import PEER_NAMES, Candidate, Comparison, QueueBackend, our_name
from bench.peers.driver import PAUSE_SECONDS
from bench.peers.ratios import ratios_to_best_peer
from bench.results import Figure, Findings, Line, Run, latency_run
from bench.testbed import Testbed

WARM_ROUNDS = 10
BASELINE = "PgQueuer"


def measure(testbed: Testbed) -> Findings:
    comparison = Comparison.create(*PEER_NAMES)
    runs: dict[str, list[Run]] = {}
    count = max(20, int(testbed.plan.seconds / statistics.fmean(PAUSE_SECONDS)))

    def measure_candidate(candidate: Candidate) -> None:
        with candidate.open_backend(testbed) as backend:
            testbed.flush_to_disk()
            runs.setdefault(candidate.name, []).append(_measure_rounds(candidate, backend, count))

    comparison.run_rounds(testbed, measure_candidate)
    runs = {name: line_runs for name, line_runs in runs.items() if comparison.is_included(name)}
    comparison.peers = [peer for peer in comparison.peers if peer.name.startswith(BASELINE)]
    template = Figure("", [], "×", 1.0, at_most=True)
    return Findings(
        "From the creation of a task to its start on an idle worker, compared with other queues",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[
            *ratios_to_best_peer(
                f"p50 from creation to start, Quarterdeck / {BASELINE}", runs, comparison, template, "p50_ms"
            ),
            *(
                Figure(f"p50 from creation to start, {name}", [run.p50_ms or 0.0 for run in line_runs], "ms",
                       at_most=True)
                for name, line_runs in runs.items()
                if name in (our_name("PostgreSQL"), our_name("SQLite")) or name.startswith(BASELINE)
            ),
        ],
        notes=[
            f"One task at a time, {count} in a run after {WARM_ROUNDS} that are not counted, each after an idle pause "
            f"of {PAUSE_SECONDS[0] * 1e3:g} to {PAUSE_SECONDS[1] * 1e3:g} ms.",
            *comparison.notes,
        ],
    )  # fmt: skip


def _measure_rounds(candidate: Candidate, backend: QueueBackend, count: int) -> Run:
    url, count = backend.new_url(), count + WARM_ROUNDS
    with candidate.start_verb("work", url=url, number=count) as work:
        work.wait_until_ready()
        sent = msgspec.convert(candidate.run_verb("starts", url=url, number=count)["sent"], dict[str, float])
        started = msgspec.convert(work.read_result()["started"], dict[str, float])
    times = sorted(started[name] - at for name, at in sent.items() if int(name) >= WARM_ROUNDS)
    return latency_run(times)
