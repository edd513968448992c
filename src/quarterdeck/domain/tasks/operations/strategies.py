"""The strategy of a zone, and the re-ranking of its tasks after the strategy changes.

A new strategy applies at once to new tasks. Existing tasks are re-ranked in slices of 1,000, in order of creation. Each
slice locks the zone only for its own transaction, so other commands are served while a zone with a million tasks is
being re-ranked. The progress is stored in `task_strategies`, so re-ranking continues after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.tasks.model.commands import LeaderCommand
from quarterdeck.domain.tasks.model.rows import Strategy, Task
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import leases
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.transaction import Transaction

PERMISSION = "coordinator.use"
SLICE = 1_000
"""Tasks per slice."""


class PutStrategy(LeaderCommand, frozen=True, kw_only=True):
    strategy: Strategy


class RerankSlice(LeaderCommand, frozen=True, kw_only=True):
    """Sent by the coordinator: re-rank the next slice."""


class RankingState(msgspec.Struct, frozen=True):
    strategy: Strategy
    is_complete: bool
    """Whether all tasks of the zone have a rank under this strategy."""


async def read_strategy(tx: Transaction, command: Command) -> Strategy:
    await access.require_permission(tx, command.caller, command.zone_id, PERMISSION)
    await zones.require_zone(tx, command.zone_id)
    [rows] = await tx.read(COORDINATOR.task_strategy_get(zone_id=command.zone_id))
    return Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY


async def run_batch(
    tx: Transaction, commands: Sequence[PutStrategy | RerankSlice]
) -> list[RankingState | Problem | Busy]:
    terms = sorted({command.leader_term for command in commands if command.leader_term is not None})
    batch, [term_rows] = await access.lock_with_roles(tx, commands, before=[leases.valid_terms_statement(terms)])
    valid_terms = {(str(name), int(str(term))) for name, term in term_rows}
    outcomes: list[RankingState | Problem | Busy] = []
    for command in commands:
        problem = batch.permission_problem(command, PERMISSION)
        if command.leader_term is not None and command.leader_term not in valid_terms:
            name, term = command.leader_term
            detail = f"Leader term {term} of lease {name!r} has ended: another process is the leader."
            problem = problem or LeaseLost("lease_lost", detail)
        if problem is not None:
            outcomes.append(problem)
        elif isinstance(command, PutStrategy):
            outcomes.append(await _put_strategy(tx, command))
        else:
            outcomes.append(await _rerank_slice(tx, command))
    return outcomes


async def _put_strategy(tx: Transaction, command: PutStrategy) -> RankingState:
    [rows] = await tx.read(COORDINATOR.task_strategy_get(zone_id=command.zone_id))
    before = Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY
    if before is command.strategy:
        return RankingState(command.strategy, not rows or rows[0][1] is None)
    tx.write(COORDINATOR.task_strategy_put(zone_id=command.zone_id, strategy=command.strategy, now=tx.now))
    data = msgspec.json.encode({"strategy": command.strategy}).decode()
    tx.emit(
        NewEvent(
            "coordinator.strategy",
            command.zone_id,
            command.zone_id,
            command.actor,
            before,
            command.strategy,
            data,
            command.trace,
        )
    )
    return RankingState(command.strategy, False)


async def _rerank_slice(tx: Transaction, command: RerankSlice) -> RankingState:
    [rows] = await tx.read(COORDINATOR.task_strategy_get(zone_id=command.zone_id))
    if not rows or rows[0][1] is None:
        return RankingState(Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY, True)
    strategy, ranked_to = Strategy(str(rows[0][0])), str(rows[0][1])
    tasks = await tx.fetch(Task, COORDINATOR.tasks_to_rank(zone_id=command.zone_id, after=ranked_to, limit=SLICE))
    outdated_tasks = [task for task in tasks if task.ranked_by is not strategy and not states.has_ended(task)]
    if outdated_tasks:
        ranks = (
            await _assign_fair_ranks(tx, outdated_tasks)
            if strategy is Strategy.FAIR
            else [ranking.rank_of(strategy, task) for task in outdated_tasks]
        )
        batch = [(task.zone_id, task.id, rank, strategy) for task, rank in zip(outdated_tasks, ranks, strict=True)]
        tx.write(COORDINATOR.tasks_rank(batch=batch))
    is_last = len(tasks) < SLICE
    tx.write(
        COORDINATOR.task_strategy_set_progress(zone_id=command.zone_id, ranked_to=None if is_last else tasks[-1].id)
    )
    return RankingState(strategy, is_last)


async def _assign_fair_ranks(tx: Transaction, tasks: Sequence[Task]) -> list[int]:
    """Return ranks as if the tasks were created again in the same order, and store each creator's latest rank."""
    zone_id = tasks[0].zone_id
    creators = [(zone_id, creator) for creator in sorted({"", *(task.created_by for task in tasks)})]
    [rows] = await tx.read(COORDINATOR.task_fair_ranks_get(batch=creators))
    fair_ranks = ranking.FairRanks({(zone_id, str(creator)): int(str(rank)) for creator, rank in rows})
    ranks = [fair_ranks.next_rank(zone_id, task.created_by) for task in tasks]
    tx.write(Q.task_fair_ranks_set(batch=[(*creator, rank) for creator, rank in sorted(fair_ranks.changed().items())]))
    return ranks
