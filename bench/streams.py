"""How long an event takes from its commit into a Redis stream, to somebody who waits there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec

from bench import ledger
from bench.asks import spawns
from bench.beside import beside
from bench.load import GRACE_SECONDS, as_run, child, order
from bench.meter import CORES, Meter
from bench.observed import samples
from bench.orders import LiveTally, OpenTally, ReadOrder
from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.spawning import Spawning
from bench.stage import Stage, Target
from quarterdeck.bus.redis.stream_entries import AGENTS

RATE = 200
CONNECTIONS = 64
MOST_MS = 50.0
KEY = "the key that entries are signed with"
TOLD_SECONDS = 120.0
LOOK_SECONDS = 0.1
LAST_SPAWN = "select coalesce(max(pos), 0) from events where type = 'session.spawn'"
BY_ANOTHER = "PostgreSQL, by another replica"
NAMES = ("PostgreSQL", "SQLite", BY_ANOTHER)


def measure(stage: Stage) -> Findings:
    lines: dict[str, list[Run]] = {}
    longest, elsewhere = 0.0, 1.0
    for name in NAMES:
        for _ in range(stage.plan.rounds):
            run, tally, told = _round(stage, name)
            lines.setdefault(name, []).append(run)
            longest, elsewhere = max(longest, tally.max_ms), min(elsewhere, told)
    return Findings(
        "From commit to a reader of the Redis stream",
        lines=[Line(f"{name}, entries read", runs) for name, runs in lines.items()],
        figures=[
            Figure(f"p99 from commit to stream, {name}", [run.p99_ms or 0.0 for run in runs], "ms", MOST_MS,
                   at_most=True)
            for name, runs in lines.items()
        ],
        notes=[
            f"{RATE} spawns a second into one zone, sent on a schedule; one reader waits for them in XREAD on "
            f"`{AGENTS}`. Redis writes and syncs everything before it answers (`appendfsync always`).",
            "Latency runs from the event's `at`, which the database's clock gave before the commit, to the moment the "
            "reader has the entry: the rest of the transaction and the commit are in it.",
            f"Every spawn was read once, in the order of the log, rightly signed. The longest took {longest:.0f} ms.",
            "“By another replica”: spawned at one of two servers, while the other had the sink. It delivered "
            f"{elsewhere:.0%} of the entries, in the round where it was least.",
        ],
    )  # fmt: skip


def _round(stage: Stage, name: str) -> tuple[Run, LiveTally, float]:
    """What was read, and which part of it the first of the servers delivered."""
    with _servers(stage, name) as targets:
        # Whoever has something to tell first takes the sink, and keeps it while there is more.
        spawning = Spawning(stage, targets[0])
        if len(targets) > 1:
            spawning = Spawning(stage, targets[-1], "other")
        before = _delivered(targets[0])
        run, tally = _read(stage, spawning)
        return run, tally, (_delivered(targets[0]) - before) / tally.count


@contextlib.contextmanager
def _servers(stage: Stage, name: str) -> Iterator[list[Target]]:
    """One server that has Redis beside it, or two on one database."""
    stage.redis.side.wipe()
    variables = {"REDIS_URL": stage.redis.url, "STREAMS_HMAC_KEY": KEY}
    with contextlib.ExitStack() as opened:
        database = None if name == "SQLite" else opened.enter_context(stage.database())
        number = 2 if name == BY_ANOTHER else 1
        yield [opened.enter_context(stage.server(database, variables=variables)) for _ in range(number)]


def _read(stage: Stage, spawning: Spawning) -> tuple[Run, LiveTally]:
    [zone] = named = spawning.new_zones(1)
    seconds, target = stage.plan.seconds, spawning.target
    sending = order(target, spawns(named), CONNECTIONS, seconds, RATE)
    told = ReadOrder(
        stage.redis.url, AGENTS, _until_all_is_told(stage, target), zone, int(RATE * seconds), seconds, KEY
    )
    heard: list[LiveTally] = []

    def run() -> Run:
        with beside("bench.readers", told) as reader:
            meter = Meter(target.watched)
            sent = msgspec.json.decode(child("bench.openloop", sending), type=OpenTally)
            heard.append(msgspec.json.decode(reader.answer(seconds + GRACE_SECONDS), type=LiveTally))
        return as_run(sent, meter.stop())

    spawned = spawning.checked(named, 0, run)
    [tally] = heard
    if tally.refused or tally.lost:
        raise BenchError(
            f"{tally.refused} entries were out of order, doubled or wrongly signed, and {tally.lost} never came. What "
            "is lost has no latency."
        )
    return msgspec.structs.replace(
        spawned,
        rate=tally.count / tally.seconds,
        count=tally.count,
        server_us=None,
        load=(spawned.load or 0.0) + (tally.cpu_seconds or 0.0) / tally.seconds / CORES,
        p50_ms=tally.p50_ms,
        p99_ms=tally.p99_ms,
    ), tally


def _until_all_is_told(stage: Stage, target: Target) -> str:
    """Waits until the warm-up has been delivered; the id of its last entry."""
    [last] = ledger.read(target, LAST_SPAWN, [])
    latest = time.monotonic() + TOLD_SECONDS
    while time.monotonic() < latest:
        for entry, fields in stage.redis.side.client.xrevrange(AGENTS, count=1) or ():
            if fields is not None and int(fields["pos"]) == last:
                return str(entry)
        time.sleep(LOOK_SECONDS)
    raise BenchError(f"The spawns of the warm-up were not in Redis within {TOLD_SECONDS:.0f} s.")


def _delivered(target: Target) -> float:
    return sum(value for name, _, value in samples(target) if name == "quarterdeck_sink_delivered_total")
