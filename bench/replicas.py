"""Spawns through three replicas on one PostgreSQL, beside the same through one of them.

As many connections in all, from as many generators, to the same servers: in one run all of them go to the first, in
the next a third to each. What is compared is what it costs to share the locks, the log and the machine.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import msgspec

from bench import ledger
from bench.asks import spawns
from bench.load import Requests, as_run, send
from bench.meter import Meter
from bench.observed import Observed, check as check_answers, observe
from bench.orders import Tally
from bench.results import Figure, Findings, Line, Run, ratios
from bench.spawn import Order, there_and_back
from bench.spawning import CONNECTIONS, MANY_ZONES
from bench.stage import Stage, Target

NUMBER = 3
LEAST = 0.9
ONE_HOT, THREE_HOT = "one replica, one hot zone", "three replicas, one hot zone"
ONE_MANY, THREE_MANY = f"one replica, {MANY_ZONES} zones", f"three replicas, {MANY_ZONES} zones"


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    for _ in range(stage.plan.rounds):
        with _replicas(stage) as targets:
            there_and_back(_order(Together(stage, targets), targets), runs)

    def over(measured: str, beside: str) -> list[float]:
        return ratios(runs[measured], runs[beside], stage.plan.rounds)

    return Findings(
        "Three replicas on one PostgreSQL, beside one",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[
            Figure("Three replicas / one, one hot zone", over(THREE_HOT, ONE_HOT), "×", LEAST),
            Figure(f"Three replicas / one, {MANY_ZONES} zones", over(THREE_MANY, ONE_MANY), "×", LEAST),
        ],
        notes=[
            f"{CONNECTIONS} connections in all, from {NUMBER} generators, on the machine that also has PostgreSQL. "
            "Here more replicas bring no more processors, only more processes that share them. Runs are half as long "
            "as others.",
        ],
    )  # fmt: skip


def _order(together: Together, targets: list[Target]) -> Order:
    first = [targets[0]] * NUMBER
    return [
        (ONE_HOT, lambda: together.run(first, 1)),
        (THREE_HOT, lambda: together.run(targets, 1)),
        (ONE_MANY, lambda: together.run(first, MANY_ZONES)),
        (THREE_MANY, lambda: together.run(targets, MANY_ZONES)),
    ]


@contextlib.contextmanager
def _replicas(stage: Stage) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(stage.database())
        yield [opened.enter_context(stage.server(database)) for _ in range(NUMBER)]


class Together:
    """Runs of spawns over several generators at once, each with its share of the connections and its own server."""

    def __init__(self, stage: Stage, targets: Sequence[Target]) -> None:
        self._stage = stage
        self._targets = targets
        self._names = (f"run{number}" for number in itertools.count(1))
        self._warm_up()

    def run(self, loaded: Sequence[Target], zones: int) -> Run:
        """`loaded` names a server for each generator."""
        named = self._targets[0].zones(next(self._names), zones)
        self._stage.settle()
        held, observed = ledger.held(self._targets[0], named), self._observe()
        done = self._drive(loaded, spawns(named), max(1.0, self._stage.plan.seconds / 2))
        new = self._observe().since(observed)
        ledger.check(held, ledger.held(self._targets[0], named), done.count, CONNECTIONS)
        check_answers(new, done.count, CONNECTIONS)
        return msgspec.structs.replace(done, per_commit=new.commands / max(1, new.batches))

    def _warm_up(self) -> None:
        named = self._targets[0].zones("warm", 1)
        self._drive(self._targets, spawns(named), self._stage.plan.warm_up)

    def _drive(self, loaded: Sequence[Target], requests: Requests, seconds: float) -> Run:
        shares = [CONNECTIONS // NUMBER + (n < CONNECTIONS % NUMBER) for n in range(NUMBER)]
        first, *others = dict.fromkeys(loaded)
        meter = Meter(replace(first.watched, replicas=tuple(other.pid for other in others)))
        with ThreadPoolExecutor(NUMBER) as pool:
            sent = [
                pool.submit(send, target, requests, share, seconds)
                for target, share in zip(loaded, shares, strict=True)
            ]
            tallies = [each.result() for each in sent]
        return as_run(_sum(tallies), meter.stop())

    def _observe(self) -> Observed:
        return reduce(Observed.beside, (observe(target) for target in self._targets))


def _sum(tallies: Sequence[Tally]) -> Tally:
    """Of the latencies the mean of the medians and the worst of the tails: nobody saw all of them."""
    used = [tally.cpu_seconds for tally in tallies]
    return Tally(
        count=sum(tally.count for tally in tallies),
        seconds=max(tally.seconds for tally in tallies),
        refused=sum(tally.refused for tally in tallies),
        lost=sum(tally.lost for tally in tallies),
        p50_ms=sum(tally.p50_ms for tally in tallies) / len(tallies),
        p99_ms=max(tally.p99_ms for tally in tallies),
        cpu_seconds=None if None in used else sum(each for each in used if each is not None),
    )
