"""One checked run of spawns over HTTP, on whatever engine the server has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from bench import ledger
from bench.asks import spawns
from bench.load import drive
from bench.results import Run
from bench.stage import Stage, Target

CONNECTIONS = 64
MANY_ZONES = 64


class Spawning:
    """Spawns into zones that are new for every run, unless zones are named."""

    def __init__(self, stage: Stage, target: Target) -> None:
        self._stage = stage
        self.target = target
        self._names: Iterator[str] = (f"run{number}" for number in itertools.count(1))
        self.warm_up()

    def warm_up(self) -> None:
        zones = self.target.zones("warm", 1)
        drive(self.target, spawns(zones), CONNECTIONS, self._stage.plan.warm_up)

    def new_zones(self, number: int) -> list[str]:
        return self.target.zones(next(self._names), number)

    def run(self, zones: int | list[str] = 1, connections: int = CONNECTIONS, seconds: float | None = None) -> Run:
        named = self.new_zones(zones) if isinstance(zones, int) else zones
        self._stage.settle()
        before = ledger.held(self.target, named)
        run = drive(self.target, spawns(named), connections, seconds or self._stage.plan.seconds)
        ledger.check(before, ledger.held(self.target, named), run.count, connections)
        return run
