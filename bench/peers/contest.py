"""Who is compared, where each of them works, and what it is told: all by the same driver, a process for each verb.

A queue that cannot be made ready, or does not do what it was told, leaves the contest with a sentence; Quarterdeck may
not.
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

from bench import ledger
from bench.meter import Watched
from bench.peers import environment
from bench.peers.environment import Unavailable
from bench.plan import ROOT, BenchError
from bench.stage import Stage, Target
from tests.support.children import plain_environment

ENGINES = ("PostgreSQL", "SQLite")
PATIENCE_SECONDS = 180.0
"""For any verb: they are told to do what takes seconds."""
DONE = {
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
OURS_DONE = """
select (select count(*) from agent_tasks where zone_id in {zones} and status = 'COMPLETED' and attempt = 1),
    (select min(assigned_at) from agent_tasks where zone_id in {zones}),
    (select max(completed_at) from agent_tasks where zone_id in {zones})
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What is durably done, from the first that was begun to the last that was done, by the database's clock."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue works, for one round."""

    url: Callable[[], str]
    """Of a place nobody has worked in, each time it is asked."""
    watched: Watched
    done: Callable[[str, float], Done] | None
    """At this url, since this moment; None: only its worker knows."""


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    module: str
    is_ours: bool
    is_judged: bool
    """Whether it is on PostgreSQL, by which everybody is compared."""
    has_bulk: bool
    python: str
    place: Callable[[Stage], AbstractContextManager[Place]]

    def do(self, verb: str, **told: str | int) -> dict[str, object]:
        """Runs one verb to its end; the last it says is its tally."""
        with self.doing(verb, **told) as it:
            return it.tally()

    @contextlib.contextmanager
    def doing(self, verb: str, **told: str | int) -> Iterator[Doing]:
        with subprocess.Popen(
            [self.python, "-W", "ignore", "-m", "bench.peers.driver", self.module, verb],
            cwd=ROOT,
            env=plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdin
                process.stdin.write(json.dumps(told) + "\n")
                process.stdin.flush()
                yield Doing(self, verb, process)
            finally:
                process.kill()


class Doing:
    """A verb that is being done."""

    def __init__(self, who: Contestant, verb: str, process: subprocess.Popen[str]) -> None:
        self._what = f"{who.name}: {verb}"
        self._wrong: type[Exception] = BenchError if who.is_ours else Unavailable
        self._process = process

    def until_ready(self) -> None:
        said = self._process.stdout
        assert said
        if not select.select([said], [], [], PATIENCE_SECONDS)[0] or "ready" not in said.readline():
            self._process.terminate()
            self.tally()
            raise self._wrong(f"{self._what} did not become ready")

    def tally(self) -> dict[str, object]:
        try:
            said, complained = self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._wrong(f"{self._what} took longer than {PATIENCE_SECONDS:g} s") from None
        lines = [line for line in said.splitlines() if line.startswith("{")]
        if self._process.returncode or not lines:
            words = " ".join(complained.split())[-environment.WORDS :]
            raise self._wrong(f"{self._what} failed: {words or 'without a word'}")
        tally: dict[str, object] = json.loads(lines[-1])
        return tally


@dataclass(slots=True)
class Contest:
    """Who takes part, and why somebody does not."""

    ours: list[Contestant]
    peers: list[Contestant] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, *peers: str) -> Contest:
        contest = cls([_ours(engine) for engine in ENGINES])
        for peer in peers:
            try:
                contest.peers.append(_peer(peer, str(environment.python_of(peer))))
            except Unavailable as why:
                contest.absent[NAMES[peer]] = str(why)
        return contest

    def rounds(self, stage: Stage, one: Callable[[Contestant], None]) -> None:
        """Everybody in turn, there and in the next round back: a drift of the machine falls on all alike."""
        for number in range(stage.plan.rounds):
            everybody = [*self.ours, *self.peers]
            for who in everybody if number % 2 == 0 else reversed(everybody):
                print(f"  round {number + 1}: {who.name}", flush=True)
                try:
                    one(who)
                except Unavailable as why:
                    self.peers.remove(who)
                    self.absent[who.name] = str(why)

    @property
    def judged(self) -> list[str]:
        """The peers by which we are judged, so far as they have not left."""
        return [peer.name for peer in self.peers if peer.is_judged]

    @property
    def notes(self) -> list[str]:
        return [f"Not measured: {name}: {why}." for name, why in self.absent.items()]

    def has(self, name: str) -> bool:
        return name not in self.absent


# -- who there is ------------------------------------------------------------------------------------------------


NAMES: Mapping[str, str] = {
    "pgqueuer": f"PgQueuer {environment.version_of('pgqueuer')}",
    "procrastinate": f"Procrastinate {environment.version_of('procrastinate')}",
    "celery": f"Celery {environment.version_of('celery')}, Redis",
    "taskiq": f"taskiq {environment.version_of('taskiq')}, Redis",
}
PEERS = tuple(NAMES)
ON_POSTGRESQL = ("pgqueuer", "procrastinate")


def ours_on(engine: str) -> str:
    return f"Quarterdeck, {engine}"


def _ours(engine: str) -> Contestant:
    @contextlib.contextmanager
    def place(stage: Stage) -> Iterator[Place]:
        numbers = itertools.count(1)
        with stage.fresh(engine) as target:

            def url() -> str:
                [zone] = target.zones(f"tasks{next(numbers)}", 1)
                host, port = target.address
                return f"http://:{target.token}@{host}:{port}/{zone}"

            yield Place(url, target.watched, lambda url, _: _ours_done(target, url.rpartition("/")[2]))

    on_postgresql = engine == "PostgreSQL"
    return Contestant(ours_on(engine), "quarterdeck", True, on_postgresql, True, sys.executable, place)


def _ours_done(target: Target, zone: str) -> Done:
    count, first, last = ledger.read(target, OURS_DONE, [zone])
    return Done(count, (last - first) / 1e3)


def _peer(peer: str, python: str) -> Contestant:
    on_postgresql = peer in ON_POSTGRESQL

    @contextlib.contextmanager
    def place(stage: Stage) -> Iterator[Place]:
        if on_postgresql:
            with stage.blank() as database:
                contestant.do("install", url=database)
                watched = Watched(postgres=stage.postgres.pid)
                yield Place(lambda: database, watched, lambda url, since: _done(DONE[peer], url, since))
        else:

            def url() -> str:
                stage.redis.side.wipe()
                contestant.do("install", url=stage.redis.url)
                return stage.redis.url

            yield Place(url, Watched(), None)

    contestant = Contestant(NAMES[peer], peer, False, on_postgresql, on_postgresql, python, place)
    return contestant


def _done(query: str, database: str, since: float) -> Done:
    with psycopg.connect(database) as connection:
        row = connection.execute(query.encode(), {"since": since}).fetchone()
    assert row is not None
    count, first, last = row
    return Done(int(count), float(last - first) / 1e3 if count else 0.0)


def now() -> float:
    """By the clock of this machine, which is the databases' too."""
    return time.time()
