"""Loads the input of a batch in one round trip, which also locks the zones.

A second round trip, if needed, loads the ready tasks for claims and the tasks that idempotency keys refer to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import SECOND
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.costs import operations as costs
from quarterdeck.domain.tasks.model.commands import (
    Assign,
    Claim,
    Complete,
    Create,
    Patch,
    Progress,
    Retry,
    TaskCommand,
    TaskUpdate,
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import AgentRef, State, Strategy, Task, TaskRef
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import (
    AgentInfo,
    BatchInput,
    ClassRef,
    DependencyState,
    TaskClass,
    Timeouts,
)
from quarterdeck.domain.tasks.rules.idempotency import claim_key, command_key
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine import idempotency, leases
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

DEPENDENTS_MAX = 1_000
"""Maximum number of dependents that one batch unblocks."""
CLOSURE_MAX = 100_000
"""Maximum number of dependencies that are loaded to search for a cycle."""
_decode_names = msgspec.json.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True)
class Loaded:
    input: BatchInput
    batch: access.BatchWithRoles
    valid_terms: set[tuple[str, int]]
    """The leader terms of the batch that are still valid."""


async def load(
    tx: Transaction, commands: Sequence[TaskCommand], polled_claims: Sequence[Claim], timeouts: Timeouts
) -> Loaded:
    """Load the input for the commands of the batch, and for waiting claims that may take new tasks."""
    refs = _BatchRefs(commands, polled_claims)
    ending_refs = [(*ref, 0) for ref in sorted(refs.ending_tasks)]
    claiming_zones = [(zone,) for zone in sorted(refs.claiming_zones)]
    batch, results = await access.lock_with_roles(
        tx,
        commands,
        *costs.spent_budget_statements(refs.offering_zones),
        idempotency.load_keys(sorted(refs.keys, key=str)) if refs.keys else None,
        Q.tasks_get(batch=sorted(refs.tasks)) if refs.tasks else None,
        Q.task_dependency_states(batch=sorted(refs.dependencies)) if refs.dependencies else None,
        Q.task_ranks_get(batch=sorted(refs.creators)) if refs.creators else None,
        agents.load_statement(sorted(refs.agents)) if refs.agents else None,
        Q.tasks_of_claims(batch=refs.claims) if refs.claims else None,
        Q.tasks_waiting_for(batch=ending_refs, limit=DEPENDENTS_MAX + 1) if ending_refs else None,
        Q.task_dependencies_with_states(batch=sorted(refs.retried_tasks)) if refs.retried_tasks else None,
        Q.task_dependency_closure(batch=sorted(refs.new_dependencies), limit=CLOSURE_MAX)
        if refs.new_dependencies
        else None,
        Q.tasks_get_tags(batch=sorted(refs.retagged_tasks)) if refs.retagged_tasks else None,
        Q.task_classes_ready(batch=claiming_zones) if claiming_zones else None,
        waiting=polled_claims,
        before=[leases.valid_terms_statement(sorted(refs.terms)) if refs.terms else None],
    )
    term_rows, *budget_rows, key_rows, task_rows, dependency_rows, rank_rows, agent_rows, held_rows = results[:-5]
    dependent_rows, retried_rows, closure_rows, tags_rows, class_rows = results[-5:]

    dependents, dependent_tasks = _decode_dependents(dependent_rows[:DEPENDENTS_MAX])
    key_records = idempotency.decode_records(key_rows)
    loaded_agents = _agent_infos(agent_rows, tx.now)
    classes, first_ranks = decode_classes(class_rows)
    spent_budgets = costs.LoadedSpentBudgets.from_rows(budget_rows, tx.now)
    ready_statements = _ready_statements(
        commands, loaded_agents, _classes_within_budget(classes, spent_budgets), first_ranks, spent_budgets
    )
    ready, keyed_tasks = await _load_ready_and_keyed_tasks(tx, refs, key_records, ready_statements)
    strategies, fair_ranks = _decode_ranks(rank_rows)
    tasks = [*decode([*task_rows, *(row[:-1] for row in held_rows)], Task), *dependent_tasks, *keyed_tasks]
    batch_input = BatchInput(
        now=tx.now,
        timeouts=timeouts,
        permission_problem=batch.role_problem,
        zone_problems=zone_rules.ended_zone_problems(batch.zones.values()),
        tasks=[task for task in tasks if task.zone_id in batch.zones],
        dependency_states=decode([*dependency_rows, *(row[1:] for row in retried_rows)], DependencyState),
        keys=key_records,
        agents=loaded_agents,
        classes=classes,
        ready_tasks=[task for task in decode([row[:-1] for row in ready], Task) if task.zone_id in batch.zones],
        content_sizes={(str(row[1]), str(row[0])): int(str(row[-1])) for row in [*held_rows, *ready]},
        strategies=strategies,
        fair_ranks=fair_ranks,
        dependents=dependents,
        dependents_truncated=len(dependent_rows) > DEPENDENTS_MAX,
        dependencies=_decode_dependencies([(row[1], row[0], row[2]) for row in retried_rows], closure_rows),
        tags={(str(zone_id), str(task_id)): _decode_names(str(tags)) for zone_id, task_id, tags in tags_rows},
        is_over_budget=spent_budgets.is_spent_for,
    )
    return Loaded(batch_input, batch, {(str(name), int(str(term))) for name, term in term_rows})


class _BatchRefs:
    """Everything that the commands of a batch refer to."""

    def __init__(self, commands: Sequence[TaskCommand], polled_claims: Sequence[Claim]) -> None:
        self.terms: set[tuple[str, int]] = {
            command.leader_term for command in commands if command.leader_term is not None
        }
        self.tasks: set[TaskRef] = set()
        self.dependencies: set[TaskRef] = set()
        self.keys: set[Key] = set()
        self.creators: set[tuple[str, str]] = set()
        self.agents: set[AgentRef] = {(command.zone_id, command.agent_id) for command in polled_claims}
        self.claims: list[tuple[str, str, str, State]] = []
        self.ending_tasks: set[TaskRef] = set()
        self.retried_tasks: set[TaskRef] = set()
        self.new_dependencies: set[TaskRef] = set()
        self.retagged_tasks: set[TaskRef] = set()
        self.claiming_zones: set[str] = set()
        for command in commands:
            self._add(command)
        for claim in polled_claims:
            self._add_claim(claim)
        self.offering_zones = {zone_id for zone_id, _ in self.agents}
        """Zones in which tasks may be claimed or assigned."""

    def _add(self, command: TaskCommand) -> None:
        match command:
            case Create():
                self._add_create(command)
            case Claim():
                self.agents.add((command.zone_id, command.agent_id))
                self.claiming_zones.add(command.zone_id)
                self._add_claim(command)
            case TaskUpdate():
                self._add_update(command)

    def _add_create(self, command: Create) -> None:
        assert command.caller is not None
        if command.has_requested_id:
            self.tasks.add((command.zone_id, command.id))
        if (key := command_key(command)) is not None:
            self.keys.add(key)
        self.creators.add((command.zone_id, command.caller.subject))
        self.dependencies |= {(command.zone_id, task_id) for task_id in command.depends_on}

    def _add_update(self, command: TaskUpdate) -> None:
        ref = (command.zone_id, command.id)
        self.tasks.add(ref)
        match command:
            case Complete() | UnblockDependents():
                self.ending_tasks.add(ref)
            case Progress() if key := command_key(command):
                self.keys.add(key)
            case Retry():
                self.retried_tasks.add(ref)
            case Patch():
                self.new_dependencies |= {(command.zone_id, task_id) for task_id in command.depends_on or ()}
                self.dependencies |= self.new_dependencies
                if command.tags is not None:
                    self.retagged_tasks.add(ref)
            case Assign():
                self.agents.add((command.zone_id, command.agent_id))

    def _add_claim(self, command: Claim) -> None:
        self.claims.append((command.zone_id, command.agent_id, command.claim_id or "", State.ASSIGNED))
        if command.claim_id is not None:
            self.claims.append((command.zone_id, command.agent_id, command.claim_id, State.RUNNING))
        if (key := claim_key(command.zone_id, command.agent_id, command.claim_id)) is not None:
            self.keys.add(key)


async def _load_ready_and_keyed_tasks(
    tx: Transaction, refs: _BatchRefs, key_records: dict[Key, KeyRecord], ready_statements: Sequence[BoundStatement]
) -> tuple[list[Row], list[Task]]:
    """Return (rows of ready tasks with their content size, tasks that stored idempotency keys refer to)."""
    keyed_refs = [(record.zone_id, record.subject_id) for record in key_records.values()]
    statements = [*ready_statements, *([Q.tasks_get(batch=sorted(keyed_refs))] if keyed_refs else [])]
    if not statements:
        return [], []
    results = await tx.read(*statements)
    keyed_tasks = decode(results.pop(), Task) if keyed_refs else []
    return [row for rows in results for row in rows], keyed_tasks


def _ready_statements(
    commands: Iterable[TaskCommand],
    agent_infos: dict[AgentRef, AgentInfo],
    classes: dict[ClassRef, TaskClass],
    first_ranks: dict[ClassRef, int],
    spent_budgets: costs.LoadedSpentBudgets,
) -> list[BoundStatement]:
    """Build the statements that read the next ready tasks of each class that a claim matches.

    The n tasks with the lowest ranks are in the n classes with the lowest first ranks, so a claim for n tasks reads at
    most n classes. Tasks whose own budget is spent are skipped but may rank first, so n is increased by their number.
    """
    limits = Counter[ClassRef]()
    for command in commands:
        if not isinstance(command, Claim):
            continue
        agent = agent_infos.get((command.zone_id, command.agent_id))
        limit = 0 if agent is None or agent.problem else min(command.limit, agent.free_slots)
        if agent is None or limit <= 0:
            continue
        capabilities = agent.capabilities if command.capabilities is None else agent.capabilities & command.capabilities
        matching = [
            ref
            for ref, task_class in classes.items()
            if ref[0] == command.zone_id and task_class.matches(capabilities, command.task_types)
        ]
        limit += spent_budgets.count_spent_tasks(command.zone_id)
        for ref in sorted(matching, key=first_ranks.__getitem__)[:limit]:
            limits[ref] += limit
    return [
        Q.tasks_next_of_class(zone_id=zone_id, class_id=class_id, limit=class_limit)
        for (zone_id, class_id), class_limit in sorted(limits.items())
    ]


def _classes_within_budget(
    classes: dict[ClassRef, TaskClass], spent_budgets: costs.LoadedSpentBudgets
) -> dict[ClassRef, TaskClass]:
    """Drop classes that a spent budget blocks completely, so that claims read other classes instead."""
    if not spent_budgets:
        return classes
    return {
        ref: task_class
        for ref, task_class in classes.items()
        if not spent_budgets.is_spent_for_type(ref[0], task_class.task_type)
    }


def _agent_infos(rows: list[Row], now: int) -> dict[AgentRef, AgentInfo]:
    return {
        ref: AgentInfo(
            frozenset(_decode_names(agent.capabilities)),
            agents.free_slots(agent, is_claiming=True),
            max(now, agent.last_seen_at) + agent.stale_threshold_seconds * SECOND,
            agents.claim_problem(agent),
            agent.status is AgentState.ERROR,
            agents.was_just_seen(agent, now),
            agents.awaits_first_contact(agent),
        )
        for ref, agent in agents.decode_agents(rows).items()
    }


def decode_classes(rows: list[Row]) -> tuple[dict[ClassRef, TaskClass], dict[ClassRef, int]]:
    """Return the classes with ready tasks, and the lowest rank of each."""
    classes: dict[ClassRef, TaskClass] = {}
    first_ranks: dict[ClassRef, int] = {}
    for zone_id, class_id, task_type, capabilities, rank in rows:
        ref = (str(zone_id), str(class_id))
        classes[ref] = TaskClass(str(task_type), frozenset(_decode_names(str(capabilities))))
        first_ranks[ref] = int(str(rank))
    return classes, first_ranks


def _decode_ranks(rows: list[Row]) -> tuple[dict[str, Strategy], dict[tuple[str, str], int]]:
    strategies: dict[str, Strategy] = {}
    fair_ranks: dict[tuple[str, str], int] = {}
    for zone_id, creator, strategy, rank, max_claimed_rank in rows:
        zone = str(zone_id)
        strategies[zone] = Strategy(str(strategy))
        if strategies[zone] is Strategy.FAIR:
            fair_ranks[zone, str(creator)] = int(str(rank))
            fair_ranks[zone, ""] = int(str(max_claimed_rank))
    return strategies, fair_ranks


def _decode_dependents(rows: list[Row]) -> tuple[dict[TaskRef, list[TaskRef]], list[Task]]:
    tasks = decode([row[1:] for row in rows], Task)
    dependents: dict[TaskRef, list[TaskRef]] = {}
    for row, task in zip(rows, tasks, strict=True):
        dependents.setdefault((task.zone_id, str(row[0])), []).append((task.zone_id, task.id))
    return dependents, tasks


def _decode_dependencies(*row_sets: Iterable[Sequence[object]]) -> dict[TaskRef, list[str]]:
    """Group rows (zone, task, dependency) by task."""
    dependencies: dict[TaskRef, list[str]] = {}
    for rows in row_sets:
        for zone_id, task_id, depends_on in rows:
            dependencies.setdefault((str(zone_id), str(task_id)), []).append(str(depends_on))
    return dependencies
