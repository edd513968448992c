"""The compared queues, their backends, and the code that runs them: one driver for all, one process per verb.

A peer that cannot be set up or fails is excluded, with its reason. A failure of Quarterdeck ends the benchmark.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import psycopg

from bench import session_counts
from bench.meter import WatchedProcesses
from bench.peers import virtualenvs
from bench.peers.virtualenvs import PeerUnavailable
from bench.plan import ROOT, BenchError
from bench.testbed import Target, Testbed
from tests.support.child_processes import minimal_environment

ENGINES = ("PostgreSQL", "SQLite")
TIMEOUT_SECONDS = 180.0
"""For any verb. Each is expected to take seconds."""
COMPLETED_QUERIES = {
    "pgqueuer": """
select count(*) filter (where status = 'successful'),
    1000 * extract(epoch from min(created) filter (where status = 'picked')),
    1000 * extract(epoch from max(created) filter (where status = 'successful'))
from pgqueuer_log where created > to_timestamp(%(since)s)
""",
    "procrastinate": """
select count(*) filter (where type = 'succeeded'),
    1000 * extract(epoch from min(at) filter (where type = 'started')),
    1000 * extract(epoch from max(at) filter (where type = 'succeeded'))
from procrastinate_events where at > to_timestamp(%(since)s)
""",
}
OUR_COMPLETED_QUERY = """
select (select count(*) from agent_tasks where zone_id in {zones} and status = 'COMPLETED' and attempt = 1),
    (select min(assigned_at) from agent_tasks where zone_id in {zones}),
    (select max(completed_at) from agent_tasks where zone_id in {zones})
"""


@dataclass(frozen=True, slots=True)
class CompletedWork:
    """Durable completions, and the time from the first start to the last completion by the database's clock."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QueueBackend:
    """The storage of a queue for one round."""

    new_url: Callable[[], str]
    """Returns the URL of an unused queue at each call."""
    watched: WatchedProcesses
    count_completed: Callable[[str, float], CompletedWork] | None
    """Takes a URL and a start time. None: the queue does not store completions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    module: str
    is_ours: bool
    is_baseline: bool
    """Whether it uses PostgreSQL. Ratios are computed only between these."""
    has_bulk: bool
    python: str
    open_backend: Callable[[Testbed], AbstractContextManager[QueueBackend]]

    def run_verb(self, verb: str, **options: str | int) -> dict[str, object]:
        """Run one verb to its end and return its result."""
        with self.start_verb(verb, **options) as running:
            return running.read_result()

    @contextlib.contextmanager
    def start_verb(self, verb: str, **options: str | int) -> Iterator[RunningVerb]:
        with subprocess.Popen(
            [self.python, "-W", "ignore", "-m", "bench.peers.driver", self.module, verb],
            cwd=ROOT,
            env=minimal_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdin
                process.stdin.write(json.dumps(options) + "\n")
                process.stdin.flush()
                yield RunningVerb(self, verb, process)
            finally:
                process.kill()


class RunningVerb:
    def __init__(self, candidate: Candidate, verb: str, process: subprocess.Popen[str]) -> None:
        self._description = f"{candidate.name}: {verb}"
        self._error_type: type[Exception] = BenchError if candidate.is_ours else PeerUnavailable
        self._process = process

    def wait_until_ready(self) -> None:
        stdout = self._process.stdout
        assert stdout
        if not select.select([stdout], [], [], TIMEOUT_SECONDS)[0] or "ready" not in stdout.readline():
            self._process.terminate()
            self.read_result()
            raise self._error_type(f"{self._description} did not become ready")

    def read_result(self) -> dict[str, object]:
        try:
            output, errors = self._process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._error_type(f"{self._description} took longer than {TIMEOUT_SECONDS:g} s") from None
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if self._process.returncode or not lines:
            message = " ".join(errors.split())[-virtualenvs.ERROR_CHARS :]
            raise self._error_type(f"{self._description} failed: {message or 'no error output'}")
        result: dict[str, object] = json.loads(lines[-1])
        return result


@dataclass(slots=True)
class Comparison:
    ours: list[Candidate]
    peers: list[Candidate] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    """Reasons by name."""

    @classmethod
    def create(cls, *peers: str) -> Comparison:
        comparison = cls([_our_candidate(engine) for engine in ENGINES])
        for peer in peers:
            try:
                comparison.peers.append(_peer_candidate(peer, str(virtualenvs.ensure_python(peer))))
            except PeerUnavailable as error:
                comparison.excluded[DISPLAY_NAMES[peer]] = str(error)
        return comparison

    def run_rounds(self, testbed: Testbed, measure_candidate: Callable[[Candidate], None]) -> None:
        """Measure all candidates in turn, in alternating order: a drift of the machine affects all equally."""
        for number in range(testbed.plan.rounds):
            candidates = [*self.ours, *self.peers]
            for candidate in candidates if number % 2 == 0 else reversed(candidates):
                print(f"  round {number + 1}: {candidate.name}", flush=True)
                try:
                    measure_candidate(candidate)
                except PeerUnavailable as error:
                    self.peers.remove(candidate)
                    self.excluded[candidate.name] = str(error)

    @property
    def baseline_names(self) -> list[str]:
        """The peers on PostgreSQL that are not excluded."""
        return [peer.name for peer in self.peers if peer.is_baseline]

    @property
    def notes(self) -> list[str]:
        return [f"Not measured: {name}: {reason}." for name, reason in self.excluded.items()]

    def is_included(self, name: str) -> bool:
        return name not in self.excluded


# -- candidates --------------------------------------------------------------------------------------------------


DISPLAY_NAMES: Mapping[str, str] = {
    "pgqueuer": f"PgQueuer {virtualenvs.pinned_version('pgqueuer')}",
    "procrastinate": f"Procrastinate {virtualenvs.pinned_version('procrastinate')}",
    "celery": f"Celery {virtualenvs.pinned_version('celery')}, Redis",
    "taskiq": f"taskiq {virtualenvs.pinned_version('taskiq')}, Redis",
}
PEER_NAMES = tuple(DISPLAY_NAMES)
ON_POSTGRESQL = ("pgqueuer", "procrastinate")


def our_name(engine: str) -> str:
    return f"Quarterdeck, {engine}"


def _our_candidate(engine: str) -> Candidate:
    @contextlib.contextmanager
    def open_backend(testbed: Testbed) -> Iterator[QueueBackend]:
        numbers = itertools.count(1)
        with testbed.start_fresh_server(engine) as target:

            def new_url() -> str:
                [zone] = target.create_zones(f"tasks{next(numbers)}", 1)
                host, port = target.address
                return f"http://:{target.token}@{host}:{port}/{zone}"

            yield QueueBackend(
                new_url, target.watched_processes, lambda url, _: _count_our_completed(target, url.rpartition("/")[2])
            )

    on_postgresql = engine == "PostgreSQL"
    return Candidate(our_name(engine), "quarterdeck", True, on_postgresql, True, sys.executable, open_backend)


def _count_our_completed(target: Target, zone: str) -> CompletedWork:
    count, first, last = session_counts.read_numbers(target, OUR_COMPLETED_QUERY, [zone])
    return CompletedWork(count, (last - first) / 1e3)


def _peer_candidate(peer: str, python: str) -> Candidate:
    on_postgresql = peer in ON_POSTGRESQL

    @contextlib.contextmanager
    def open_backend(testbed: Testbed) -> Iterator[QueueBackend]:
        if on_postgresql:
            with testbed.new_empty_database() as database:
                candidate.run_verb("install", url=database)
                watched = WatchedProcesses(postgres=testbed.postgres.pid)
                yield QueueBackend(
                    lambda: database, watched, lambda url, since: _query_completed(COMPLETED_QUERIES[peer], url, since)
                )
        else:

            def new_url() -> str:
                testbed.redis.direct.wipe()
                candidate.run_verb("install", url=testbed.redis.url)
                return testbed.redis.url

            yield QueueBackend(new_url, WatchedProcesses(), None)

    candidate = Candidate(DISPLAY_NAMES[peer], peer, False, on_postgresql, on_postgresql, python, open_backend)
    return candidate


def _query_completed(query: str, database: str, since: float) -> CompletedWork:
    with psycopg.connect(database) as connection:
        row = connection.execute(query.encode(), {"since": since}).fetchone()
    assert row is not None
    count, first, last = row
    return CompletedWork(int(count), float(last - first) / 1e3 if count else 0.0)


def now() -> float:
    """Unix time by the clock of this machine, which the databases use too."""
    return time.time()
