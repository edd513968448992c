"""The creation of tasks, compared with other queues: one by one by 20 concurrent callers, and in bulk."""

from __future__ import annotations

import msgspec

from bench.load import Requests, run_load
from bench.meter import CpuMeter
from bench.peers.comparison import PEER_NAMES, Candidate, Comparison, QueueBackend, our_name
from bench.peers.ratios import ratios_to_best_peer
from bench.request_bodies import task_body
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Testbed

CALLERS = 20
ENQUEUE_MIN_RATIO = 2.0
BULK_SIZE = 1_000
BULK_MIN_RATIO, BULK_GOAL_RATIO = 0.5, 1.0
CALIBRATION_TASKS, MAX_TASKS = 400, 100_000
LOAD_GENERATOR_NAME = f"Quarterdeck, PostgreSQL, one by one by {CALLERS} connections of the load generator"
OURS_ON_POSTGRESQL = our_name("PostgreSQL")
Runs = dict[str, list[Run]]


def measure(testbed: Testbed) -> Findings:
    comparison = Comparison.create(*PEER_NAMES)
    single: Runs = {}
    bulk: Runs = {}
    load_generator_runs: list[Run] = []

    def measure_candidate(candidate: Candidate) -> None:
        with candidate.open_backend(testbed) as backend:
            enqueued = _measure_verb(testbed, candidate, backend, "enqueue", callers=CALLERS)
            created = (
                _measure_verb(testbed, candidate, backend, "bulk", bulk_size=BULK_SIZE) if candidate.has_bulk else None
            )
        single.setdefault(candidate.name, []).append(enqueued)
        if created is not None:
            bulk.setdefault(candidate.name, []).append(created)
        if candidate.name == OURS_ON_POSTGRESQL:
            load_generator_runs.append(_measure_with_load_generator(testbed))

    comparison.run_rounds(testbed, measure_candidate)
    single, bulk = (
        {name: line_runs for name, line_runs in runs.items() if comparison.is_included(name)} for runs in (single, bulk)
    )
    return Findings(
        "Creating tasks, compared with other queues",
        lines=[
            *(Line(f"{name}, one by one by {CALLERS} callers", line_runs) for name, line_runs in single.items()),
            Line(LOAD_GENERATOR_NAME, load_generator_runs),
            *(Line(f"{name}, {BULK_SIZE:,} per call", line_runs) for name, line_runs in bulk.items()),
        ],
        figures=[
            *ratios_to_best_peer(
                f"Enqueued by {CALLERS} callers, Quarterdeck / the best peer",
                single,
                comparison,
                Figure("", [], "×", ENQUEUE_MIN_RATIO),
            ),
            *ratios_to_best_peer(
                f"The same by {CALLERS} connections of the load generator",
                {**single, OURS_ON_POSTGRESQL: load_generator_runs},
                comparison,
                Figure("", [], "×"),
            ),
            *ratios_to_best_peer(
                "Created in bulk, Quarterdeck / the best peer",
                bulk,
                comparison,
                Figure("", [], "×", BULK_MIN_RATIO, BULK_GOAL_RATIO),
            ),
        ],
        notes=[
            "Tasks of 200 bytes; each call returns when they are durable. The number of tasks takes about "
            f"{testbed.plan.seconds:g} s. One by one: one process with {CALLERS} concurrent callers, each waiting for "
            "its own task; for Quarterdeck it is the SDK's client, which includes HTTP, an idempotency key and reading "
            "the response. In bulk: one call after the other.",
            "The load generator sends no idempotency key and takes less CPU than any client, so its figure is only "
            "reported.",
            *comparison.notes,
        ],
    )  # fmt: skip


def _measure_verb(testbed: Testbed, candidate: Candidate, backend: QueueBackend, verb: str, **options: int) -> Run:
    """Create about as many tasks as fit into the run. A short calibration run estimates the number."""
    rate = CALIBRATION_TASKS / _time_verb(candidate, verb, url=backend.new_url(), number=CALIBRATION_TASKS, **options)
    count = int(min(MAX_TASKS, max(CALIBRATION_TASKS, rate * testbed.plan.seconds)))
    testbed.flush_to_disk()
    url, meter = backend.new_url(), CpuMeter(backend.watched)
    seconds = _time_verb(candidate, verb, url=url, number=count, **options)
    usage = meter.stop()
    return Run(
        rate=count / seconds,
        count=count,
        seconds=seconds,
        server_us=usage.server_seconds / count * 1e6 if usage.server_seconds is not None else None,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load,
        idle=usage.idle,
    )


def _time_verb(candidate: Candidate, verb: str, **options: str | int) -> float:
    return msgspec.convert(candidate.run_verb(verb, **options)["seconds"], float)


def _measure_with_load_generator(testbed: Testbed) -> Run:
    requests = Requests(["/api/v1/agent-tasks"], "POST", task_body())
    with testbed.start_fresh_server("PostgreSQL") as target:
        run_load(target, requests, CALLERS, testbed.plan.warm_up_seconds)
        testbed.flush_to_disk()
        return run_load(target, requests, CALLERS, testbed.plan.seconds)
