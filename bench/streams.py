"""The latency of events from commit to a reader of the Redis stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from bench import session_counts
from bench.child_types import DeliveryResult, ReaderConfig
from bench.delivery import measure_delivery
from bench.load import build_load_config
from bench.plan import BenchError
from bench.request_bodies import spawn_requests
from bench.results import Figure, Findings, Line, Run
from bench.server_metrics import read_samples
from bench.spawn_runner import SpawnRunner
from bench.testbed import Target, Testbed
from quarterdeck.bus.redis.stream_entries import AGENTS

RATE = 200
CONNECTIONS = 64
MAX_MS = 50.0
SIGNING_KEY = "the signing key of stream entries"
DELIVERY_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.1
LAST_SPAWN_QUERY = "select coalesce(max(pos), 0) from events where type = 'session.spawn'"
BY_OTHER_REPLICA = "PostgreSQL, by another replica"
SCENARIOS = ("PostgreSQL", "SQLite", BY_OTHER_REPLICA)


def measure(testbed: Testbed) -> Findings:
    lines: dict[str, list[Run]] = {}
    max_ms, min_share = 0.0, 1.0
    for name in SCENARIOS:
        for _ in range(testbed.plan.rounds):
            run, result, share = _run_round(testbed, name)
            lines.setdefault(name, []).append(run)
            max_ms, min_share = max(max_ms, result.max_ms), min(min_share, share)
    return Findings(
        "From commit to a reader of the Redis stream",
        lines=[Line(f"{name}, entries read", runs) for name, runs in lines.items()],
        figures=[
            Figure(f"p99 from commit to stream, {name}", [run.p99_ms or 0.0 for run in runs], "ms", MAX_MS,
                   at_most=True)
            for name, runs in lines.items()
        ],
        notes=[
            f"{RATE} spawns per second into one zone, sent on a schedule; one reader waits in XREAD on `{AGENTS}`. "
            "Redis writes and syncs everything before it responds (`appendfsync always`).",
            "Latency runs from the event's `at`, which the database's clock set before the commit, until the reader "
            "has received the entry. It includes the rest of the transaction and the commit.",
            "Every spawn was read once, in the order of the log, with a valid signature. The maximum was "
            f"{max_ms:.0f} ms.",
            "“By another replica”: one of two servers got the spawns, while the other had the lease of the sink and "
            f"delivered at least {min_share:.0%} of the entries in each round.",
        ],
    )  # fmt: skip


def _run_round(testbed: Testbed, name: str) -> tuple[Run, DeliveryResult, float]:
    """The run, its result, and the share of the entries that the first server delivered."""
    with _start_servers(testbed, name) as targets:
        # The first server with events takes the lease of the sink, and keeps it while there are more.
        spawn_runner = SpawnRunner(testbed, targets[0])
        if len(targets) > 1:
            spawn_runner = SpawnRunner(testbed, targets[-1], "other")
        delivered_before = _read_delivered(targets[0])
        run, result = _measure_delivery(testbed, spawn_runner)
        return run, result, (_read_delivered(targets[0]) - delivered_before) / result.count


@contextlib.contextmanager
def _start_servers(testbed: Testbed, name: str) -> Iterator[list[Target]]:
    """One server with Redis, or two on one database."""
    testbed.redis.direct.wipe()
    variables = {"REDIS_URL": testbed.redis.url, "STREAMS_HMAC_KEY": SIGNING_KEY}
    with contextlib.ExitStack() as stack:
        database = None if name == "SQLite" else stack.enter_context(testbed.new_database())
        count = 2 if name == BY_OTHER_REPLICA else 1
        yield [stack.enter_context(testbed.start_server(database, variables=variables)) for _ in range(count)]


def _measure_delivery(testbed: Testbed, spawn_runner: SpawnRunner) -> tuple[Run, DeliveryResult]:
    [zone] = zones = spawn_runner.new_zones(1)
    seconds, target = testbed.plan.seconds, spawn_runner.target
    load_config = build_load_config(target, spawn_requests(zones), CONNECTIONS, seconds, RATE)
    reader_config = ReaderConfig(
        testbed.redis.url,
        AGENTS,
        _wait_for_warm_up_delivery(testbed, target),
        zone,
        int(RATE * seconds),
        seconds,
        SIGNING_KEY,
    )
    return measure_delivery(spawn_runner, zones, load_config, "bench.stream_reader", reader_config)


def _wait_for_warm_up_delivery(testbed: Testbed, target: Target) -> str:
    """Wait until the events of the warm-up are delivered. Returns the id of the last entry."""
    [last] = session_counts.read_numbers(target, LAST_SPAWN_QUERY, [])
    deadline = time.monotonic() + DELIVERY_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for entry, fields in testbed.redis.direct.client.xrevrange(AGENTS, count=1) or ():
            if fields is not None and int(fields["pos"]) == last:
                return str(entry)
        time.sleep(POLL_SECONDS)
    raise BenchError(f"The spawns of the warm-up were not in Redis after {DELIVERY_TIMEOUT_SECONDS:.0f} s.")


def _read_delivered(target: Target) -> float:
    return sum(value for name, _, value in read_samples(target) if name == "quarterdeck_sink_delivered_total")
