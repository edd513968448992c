"""The promise against runaway trees: a session that spawns two more, each of which spawns two more, for ever, is held
by any one bound alone, however many clients and replicas it comes through.

Every other bound stands at its ceiling. What was true at every instant is read from the log, which is in the order of
the commits; the rabbit itself must have come to a stop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quarterdeck.domain.sessions.rules import BOUNDS
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.client_pool import open_clients
from tests.support.log_replay import peak_counts, read_full_log, sessions_alive
from tests.support.rounds import ROUNDS
from tests.support.runaway_spawner import NO_BUDGET, RunawaySpawner, SpawnBehaviour
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_zone_counts_match_rows, create_zone, spawn

CLIENTS = 24
CODES = {bound.name: bound.code for bound in BOUNDS}


@dataclass(frozen=True)
class Hold:
    """One bound that is narrow, and what becomes of a rabbit under it."""

    bound: str
    limit: int
    alive: int | None
    """How many sessions there are in the end; None where that depends on who came first."""
    trees: int = 1
    nature: SpawnBehaviour = field(default_factory=SpawnBehaviour)
    also: tuple[str, ...] = ()
    """Bounds at their ceilings that it may run into as well."""

    def __str__(self) -> str:
        return self.bound


HOLDS = (
    Hold("max_depth", 4, alive=2**5 - 1),
    # One child each makes a line, and a line ends at the ceiling of depths.
    Hold("max_children", 1, alive=CEILINGS["max_depth"] + 1, also=("max_depth",)),
    Hold("max_tree_size", 20, alive=3 * 20, trees=3),
    Hold("max_concurrent", 20, alive=3 + 20, trees=3),
    Hold("max_sessions", 20, alive=20, trees=3),
    Hold("max_sessions_per_application", 20, alive=2 * 20, nature=SpawnBehaviour(applications=(APP, "other"))),
    # Spawn, finish, spawn: at no time are there many, and without this bound it would never end.
    Hold("max_tree_spawns", 60, alive=None, trees=2, nature=SpawnBehaviour(ends_max=NO_BUDGET)),
)


async def let_loose(replicas: list[ServerProcess], hold: Hold) -> tuple[FreshZone, RunawaySpawner]:
    """Returns when the rabbit has come to a stop in a zone of its own."""
    zone = await create_zone(replicas[0], **{hold.bound: hold.limit})
    async with zone.client() as client, open_clients(replicas, CLIENTS) as callers:
        roots = [(await spawn(client, zone))["id"] for _ in range(hold.trees)]
        rabbit = RunawaySpawner(zone, hold.nature)
        await rabbit.run(callers, roots)
    return zone, rabbit


@pytest.mark.parametrize("hold", HOLDS, ids=str)
async def test_a_rabbit_is_held_by_each_bound_alone(replicas: list[ServerProcess], hold: Hold) -> None:
    for _ in range(max(1, ROUNDS // 3)):
        zone, rabbit = await let_loose(replicas, hold)
        log = await read_full_log(zone)
        most = peak_counts(log)
        assert most[hold.bound] == hold.limit, "reached, and never exceeded"
        assert rabbit.refusals.keys() == {CODES[name] for name in (hold.bound, *hold.also)}
        assert rabbit.ended > 0, "some of them in a place that another had held"
        if hold.alive is not None:
            assert len(sessions_alive(log)) == hold.alive
        assert_zone_counts_match_rows(replicas[0].launch.database_url, zone.id)


async def test_spawn_finish_spawn_is_held_though_three_are_alive_at_most(replicas: list[ServerProcess]) -> None:
    """How one task became nine hundred sub-agents: no bound on what is alive would ever have refused it."""
    every_one_ends = SpawnBehaviour(keep_every=NO_BUDGET, ends_max=NO_BUDGET)
    hold = Hold("max_tree_spawns", 100, alive=1, nature=every_one_ends)
    zone, rabbit = await let_loose(replicas, hold)
    log = await read_full_log(zone)
    most = peak_counts(log)
    assert most["max_tree_spawns"] == hold.limit
    assert most["max_tree_size"] == 1 + every_one_ends.children
    assert rabbit.admitted == rabbit.ended == hold.limit - 1
    assert len(sessions_alive(log)) == hold.alive


async def test_a_greedy_rabbit_has_no_more_children_anywhere_than_it_may(replicas: list[ServerProcess]) -> None:
    """Three children each are no bound on a tree; only its own budget brings this one to a stop."""
    hold = Hold("max_children", 3, alive=None, nature=SpawnBehaviour(children=5, sessions_max=150))
    zone, rabbit = await let_loose(replicas, hold)
    assert peak_counts(await read_full_log(zone))["max_children"] == hold.limit
    assert rabbit.admitted >= hold.nature.sessions_max
    assert rabbit.refusals.keys() == {CODES["max_children"]}
    assert_zone_counts_match_rows(replicas[0].launch.database_url, zone.id)
