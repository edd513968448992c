"""The strategy of a zone, and the ranks of its tasks after it has changed.

A new strategy counts at once for what is made from then on. What is there already is ranked anew in bounded steps, in
the order in which it was made, under the zone's lock; how far that has come stands in the row of the strategy. So a
zone of a million tasks is worked through while others are served, and a restart goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.tasks.model.commands import Ask
from quarterdeck.domain.tasks.model.rows import Strategy, Task
from quarterdeck.domain.tasks.queries import COORDINATING, Q
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import leases
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

POWER = "coordinator.use"
SLICE = 1_000
Batch = list[tuple[object, ...]]


class PutStrategy(Ask, frozen=True, kw_only=True):
    strategy: Strategy


class RankStep(Ask, frozen=True, kw_only=True):
    """By the coordinator: one more step."""


class Ranked(msgspec.Struct, frozen=True):
    strategy: Strategy
    is_settled: bool
    """Everything that waits is ranked by it."""


async def strategy_of(tx: Tx, ask: Ask) -> Strategy:
    await require_power(tx, ask.caller, ask.zone_id, POWER)
    await zones.require(tx, ask.zone_id)
    [rows] = await tx.read(COORDINATING.task_strategy_get(zone_id=ask.zone_id))
    return Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY


async def rank(tx: Tx, asks: Sequence[PutStrategy | RankStep]) -> list[Ranked | Problem | Busy]:
    concerned = zones_of(asks)
    speakers = Speakers(asks)
    terms = sorted({ask.fence for ask in asks if ask.fence is not None})
    fenced, zone_rows, *said = await tx.read(leases.fences(terms), zones.lock(tx, concerned), *speakers.statements())
    held = {(str(name), int(str(term))) for name, term in fenced}
    locked = zones.locked(zone_rows)
    why_not = await zones.unlocked(tx, concerned - {*locked})
    heard = speakers.heard(said, tx.now)
    outcomes: list[Ranked | Problem | Busy] = []
    for ask in asks:
        refusal = sessions.held_up(ask, why_not) or heard.problem(ask, POWER)
        if ask.fence is not None and ask.fence not in held:
            refusal = refusal or LeaseLost("lease_lost", f"Term {ask.fence[1]} of the lease is over.")
        outcomes.append(refusal or await (_put if isinstance(ask, PutStrategy) else _step)(tx, ask))
    return outcomes


async def _put(tx: Tx, ask: PutStrategy | RankStep) -> Ranked:
    assert isinstance(ask, PutStrategy)
    [rows] = await tx.read(COORDINATING.task_strategy_get(zone_id=ask.zone_id))
    before = Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY
    if before is ask.strategy:
        return Ranked(ask.strategy, not rows or rows[0][1] is None)
    tx.write(COORDINATING.task_strategy_put(zone_id=ask.zone_id, strategy=ask.strategy, now=tx.now))
    data = msgspec.json.encode({"strategy": ask.strategy}).decode()
    tx.emit(
        NewEvent("coordinator.strategy", ask.zone_id, ask.zone_id, ask.actor, before, ask.strategy, data, ask.trace)
    )
    return Ranked(ask.strategy, False)


async def _step(tx: Tx, ask: PutStrategy | RankStep) -> Ranked:
    [rows] = await tx.read(COORDINATING.task_strategy_get(zone_id=ask.zone_id))
    if not rows or rows[0][1] is None:
        return Ranked(Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY, True)
    strategy, ranked_to = Strategy(str(rows[0][0])), str(rows[0][1])
    [found] = await tx.read(COORDINATING.tasks_to_rank(zone_id=ask.zone_id, after=ranked_to, limit=SLICE))
    tasks = decode(found, Task)
    wrong = [task for task in tasks if task.ranked_by is not strategy and not states.is_over(task)]
    if wrong:
        places = await _by_share(tx, wrong) if strategy is Strategy.FAIR else [ranking.of(strategy, t) for t in wrong]
        batch: Batch = [(task.zone_id, task.id, turn, strategy) for task, turn in zip(wrong, places, strict=True)]
        tx.write(COORDINATING.tasks_rank(batch=batch))
    is_last = len(tasks) < SLICE
    tx.write(COORDINATING.task_strategy_ranked(zone_id=ask.zone_id, ranked_to=None if is_last else tasks[-1].id))
    return Ranked(strategy, is_last)


async def _by_share(tx: Tx, tasks: Sequence[Task]) -> list[int]:
    """Turns as if those who asked had asked again, in the order in which they did."""
    zone_id = tasks[0].zone_id
    creators: Batch = [(zone_id, creator) for creator in sorted({"", *(task.created_by for task in tasks)})]
    [rows] = await tx.read(COORDINATING.task_shares_get(batch=creators))
    shares = {str(creator): int(str(turn)) for creator, turn in rows}
    served = shares.get("", 0)
    places: list[int] = []
    for task in tasks:
        shares[task.created_by] = turn = ranking.by_share(shares.get(task.created_by, 0), served)
        places.append(turn)
    moved: Batch = [(zone_id, creator, turn) for creator, turn in sorted(shares.items()) if creator]
    tx.write(Q.task_shares_set(batch=moved))
    return places
