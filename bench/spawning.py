"""One checked run of spawns over HTTP, on whatever engine the server has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from bench import ledger
from bench.asks import spawns
from bench.load import drive
from bench.observed import check as check_answers, observe
from bench.results import Run
from bench.stage import Stage, Target

CONNECTIONS = 64
MANY_ZONES = 64
WARM_ZONE = "warm-0"


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the three ways in which spawns are measured."""

    engine: str
    zones: int

    @property
    def name(self) -> str:
        return f"{self.engine}, {'one hot zone' if self.zones == 1 else f'{self.zones} zones'}"


SUBJECTS = (Subject("PostgreSQL", 1), Subject("PostgreSQL", MANY_ZONES), Subject("SQLite", 1))


class Spawning:
    """Spawns into zones that are new for every run, unless zones are named."""

    def __init__(self, stage: Stage, target: Target, name: str = "run") -> None:
        self._stage = stage
        self.target = target
        self._names: Iterator[str] = (f"{name}{number}" for number in itertools.count(1))
        self.warm_up()

    def warm_up(self) -> None:
        zones = self.target.zones(WARM_ZONE.removesuffix("-0"), 1)
        drive(self.target, spawns(zones), CONNECTIONS, self._stage.plan.warm_up)

    def new_zones(self, number: int) -> list[str]:
        return self.target.zones(next(self._names), number)

    def run(self, zones: int | list[str] = 1, connections: int = CONNECTIONS, seconds: float | None = None) -> Run:
        """Closed loop: so many connections, each with a spawn under way at any time."""
        named = self.new_zones(zones) if isinstance(zones, int) else zones
        length = seconds or self._stage.plan.seconds
        # A cut-off leaves at most one request per connection of which nobody heard.
        return self.checked(named, connections, lambda: drive(self.target, spawns(named), connections, length))

    def checked(self, zones: list[str], under_way: int, run: Callable[[], Run]) -> Run:
        """A run after which everything that was acknowledged must be there, and nothing else."""
        self._stage.settle()
        held, observed = ledger.held(self.target, zones), observe(self.target)
        done = run()
        new = observe(self.target).since(observed)
        ledger.check(held, ledger.held(self.target, zones), done.count, under_way)
        check_answers(new, done.count, under_way)
        return msgspec.structs.replace(done, per_commit=new.commands / max(1, new.batches))
