"""One run of spawns over HTTP with its checks, on any engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from bench import session_counts
from bench.load import run_load
from bench.request_bodies import spawn_requests
from bench.results import Run
from bench.server_metrics import check_responses, read_traffic
from bench.testbed import Target, Testbed

CONNECTIONS = 64
MANY_ZONES = 64
WARM_ZONE = "warm-0"


@dataclass(frozen=True, slots=True)
class Scenario:
    engine: str
    zones: int

    @property
    def name(self) -> str:
        return f"{self.engine}, {'one hot zone' if self.zones == 1 else f'{self.zones} zones'}"


SCENARIOS = (Scenario("PostgreSQL", 1), Scenario("PostgreSQL", MANY_ZONES), Scenario("SQLite", 1))


class SpawnRunner:
    """Spawns into new zones for every run, unless zones are given."""

    def __init__(self, testbed: Testbed, target: Target, name: str = "run") -> None:
        self._testbed = testbed
        self.target = target
        self._names: Iterator[str] = (f"{name}{number}" for number in itertools.count(1))
        self.warm_up()

    def warm_up(self) -> None:
        zones = self.target.create_zones(WARM_ZONE.removesuffix("-0"), 1)
        run_load(self.target, spawn_requests(zones), CONNECTIONS, self._testbed.plan.warm_up_seconds)

    def new_zones(self, count: int) -> list[str]:
        return self.target.create_zones(next(self._names), count)

    def run(self, zones: int | list[str] = 1, connections: int = CONNECTIONS, seconds: float | None = None) -> Run:
        """Closed loop: each connection has one spawn in flight at any time."""
        zone_ids = self.new_zones(zones) if isinstance(zones, int) else zones
        duration = seconds or self._testbed.plan.seconds
        # The end of the run leaves at most one unacknowledged request per connection.
        return self.run_checked(
            zone_ids, connections, lambda: run_load(self.target, spawn_requests(zone_ids), connections, duration)
        )

    def run_checked(self, zones: list[str], in_flight: int, run: Callable[[], Run]) -> Run:
        """Run, then check that everything acknowledged is stored, and nothing else."""
        self._testbed.flush_to_disk()
        counts, metrics = session_counts.count_sessions(self.target, zones), read_traffic(self.target)
        result = run()
        delta = read_traffic(self.target).since(metrics)
        session_counts.check_spawned(counts, session_counts.count_sessions(self.target, zones), result.count, in_flight)
        check_responses(delta, result.count, in_flight)
        return msgspec.structs.replace(result, per_commit=delta.commands / max(1, delta.batches))
