"""The strategy of a zone, and the re-ranking of its tasks after the strategy changes.

A new strategy applies at once to new tasks. Existing tasks are re-ranked in slices of 1,000, in order of creation. Each
slice locks the zone only for its own transaction, so other commands are served while a zone with a million tasks is
being re-ranked. The progress is stored in `task_strategies`, so re-ranking continues after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import CallerChecks, require_permission
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.tasks.model.commands import BaseCommand
from quarterdeck.domain.tasks.model.rows import Strategy, Task
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import leases
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

PERMISSION = "coordinator.use"
SLICE = 1_000
"""Tasks per slice."""


class PutStrategy(BaseCommand, frozen=True, kw_only=True):
    strategy: Strategy


class RerankSlice(BaseCommand, frozen=True, kw_only=True):
    """Sent by the coordinator: re-rank the next slice."""


class RankingState(msgspec.Struct, frozen=True):
    strategy: Strategy
    is_complete: bool
    """Whether all tasks of the zone have a rank under this strategy."""


async def read_strategy(tx: Transaction, command: BaseCommand) -> Strategy:
    await require_permission(tx, command.caller, command.zone_id, PERMISSION)
    await zones.require_zone(tx, command.zone_id)
    [rows] = await tx.read(COORDINATOR.task_strategy_get(zone_id=command.zone_id))
    return Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY


async def run_batch(
    tx: Transaction, commands: Sequence[PutStrategy | RerankSlice]
) -> list[RankingState | Problem | Busy]:
    zone_ids = zones_of(commands)
    caller_checks = CallerChecks(commands)
    terms = sorted({command.leader_term for command in commands if command.leader_term is not None})
    term_rows, zone_rows, *caller_rows = await tx.read(
        leases.valid_terms_statement(terms), zones.lock_statement(tx, zone_ids), *caller_checks.statements()
    )
    valid_terms = {(str(name), int(str(term))) for name, term in term_rows}
    locked = zones.decode_zones(zone_rows)
    lock_failures = await zones.lock_failures(tx, zone_ids - {*locked})
    caller_state = caller_checks.build_state(caller_rows, tx.now)
    outcomes: list[RankingState | Problem | Busy] = []
    for command in commands:
        problem = sessions.lock_problem(command, lock_failures) or caller_state.problem(command, PERMISSION)
        if command.leader_term is not None and command.leader_term not in valid_terms:
            name, term = command.leader_term
            detail = f"Leader term {term} of lease {name!r} has ended: another process is the leader."
            problem = problem or LeaseLost("lease_lost", detail)
        outcomes.append(
            problem or await (_put_strategy if isinstance(command, PutStrategy) else _rerank_slice)(tx, command)
        )
    return outcomes


async def _put_strategy(tx: Transaction, command: PutStrategy | RerankSlice) -> RankingState:
    assert isinstance(command, PutStrategy)
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


async def _rerank_slice(tx: Transaction, command: PutStrategy | RerankSlice) -> RankingState:
    [rows] = await tx.read(COORDINATOR.task_strategy_get(zone_id=command.zone_id))
    if not rows or rows[0][1] is None:
        return RankingState(Strategy(str(rows[0][0])) if rows else Strategy.PRIORITY, True)
    strategy, ranked_to = Strategy(str(rows[0][0])), str(rows[0][1])
    [task_rows] = await tx.read(COORDINATOR.tasks_to_rank(zone_id=command.zone_id, after=ranked_to, limit=SLICE))
    tasks = decode(task_rows, Task)
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
    fair_ranks = {str(creator): int(str(rank)) for creator, rank in rows}
    max_claimed_rank = fair_ranks.get("", 0)
    ranks: list[int] = []
    for task in tasks:
        fair_ranks[task.created_by] = rank = ranking.next_fair_rank(
            fair_ranks.get(task.created_by, 0), max_claimed_rank
        )
        ranks.append(rank)
    changed = [(zone_id, creator, rank) for creator, rank in sorted(fair_ranks.items()) if creator]
    tx.write(Q.task_fair_ranks_set(batch=changed))
    return ranks
