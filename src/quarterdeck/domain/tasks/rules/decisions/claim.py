"""Claim tasks for an agent."""

from __future__ import annotations

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Claim
from quarterdeck.domain.tasks.model.rows import ClaimedTask, ClaimedTasks, State, Task, Verb
from quarterdeck.domain.tasks.rules import errors, states
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.batch_input import AgentInfo
from quarterdeck.domain.tasks.rules.idempotency import claim_key
from quarterdeck.domain.tasks.rules.states import HELD, Attempt


def claim(batch: Batch, command: Claim) -> ClaimedTasks | Problem:
    if command.caller is not None and command.caller.agent_id not in (None, command.agent_id):
        return errors.wrong_agent(command.agent_id)
    agent = batch.agents.get((command.zone_id, command.agent_id))
    if agent is None:
        return errors.agent_not_found(command.agent_id)
    result = _claim(batch, command, agent)
    if isinstance(result, ClaimedTasks):
        batch.agents.record_claim(command, got_tasks=bool(result.items))
    return result


def usable_capabilities(batch: Batch, command: Claim) -> frozenset[str]:
    agent = batch.agents.get((command.zone_id, command.agent_id))
    agent_capabilities = frozenset[str]() if agent is None else agent.capabilities
    return agent_capabilities if command.capabilities is None else agent_capabilities & command.capabilities


def has_matching_tasks(batch: Batch, command: Claim) -> bool:
    """Whether a ready task matches the claim, even if the agent has no free slot or a budget is spent."""
    capabilities = usable_capabilities(batch, command)
    return bool(batch.queues.find_matching(command.zone_id, capabilities, command.task_types))


def _claim(batch: Batch, command: Claim, agent: AgentInfo) -> ClaimedTasks | Problem:
    if command.claim_id is not None and (held := _held_by_claim(batch, command)):
        return _claimed(held, agent)
    key = claim_key(command.zone_id, command.agent_id, command.claim_id)
    if batch.keys.find(key, ""):
        # A late repeat of a claim whose tasks have already ended: the client no longer expects tasks.
        return ClaimedTasks((), stop_waiting=True)
    if problem := batch.loaded.zone_problems.get(command.zone_id) or agent.problem:
        return problem
    tasks = _start_assigned(batch, command)
    tasks += _start_ready(batch, command, command.limit - len(tasks))
    if tasks:
        batch.keys.add(key, "", tasks[0].id)
    return _claimed(tasks, agent)


def _claimed(tasks: list[Task], agent: AgentInfo) -> ClaimedTasks:
    return ClaimedTasks(tuple(ClaimedTask(task, lease_expires_at=agent.lease_expires_at) for task in tasks))


def _held_by_claim(batch: Batch, command: Claim) -> list[Task]:
    expected = (command.zone_id, command.agent_id, command.claim_id)
    return [
        task
        for task in batch.tasks.values()
        if task.status in HELD and (task.zone_id, task.agent_id, task.claim_id) == expected
    ]


def _start_assigned(batch: Batch, command: Claim) -> list[Task]:
    """Start the tasks that are assigned to the agent. They already use a slot."""
    assigned = [
        task
        for task in batch.tasks.values()
        if task.status is State.ASSIGNED
        and (task.zone_id, task.agent_id) == (command.zone_id, command.agent_id)
        and (command.task_types is None or task.task_type in command.task_types)
    ]
    started: list[Task] = []
    for task in batch.queues.take_fitting(assigned[: command.limit]):
        after = states.start(task, batch.loaded.timeouts.overdue_ms, batch.now)
        after = states.set_claim_id(after, command.claim_id)
        batch.transition(task, after, Verb.START, command)
        started.append(after)
    return started


def _start_ready(batch: Batch, command: Claim, limit: int) -> list[Task]:
    """Start the matching ready tasks with the lowest ranks."""
    limit = min(limit, batch.agents.free_slots((command.zone_id, command.agent_id)))
    if limit <= 0:
        return []
    queues = batch.queues.find_matching(command.zone_id, usable_capabilities(batch, command), command.task_types)
    ready = batch.queues.pop(command.zone_id, queues, limit, batch.loaded.is_over_budget)
    session_key = None if command.caller is None else command.caller.session_id
    started: list[Task] = []
    for task, token in zip(ready, command.attempt_tokens, strict=False):
        attempt = Attempt(command.agent_id, token, command.claim_id, session_key)
        after = states.claim(task, attempt, batch.loaded.timeouts.overdue_ms, batch.now)
        batch.fair_ranks.record_claim(task)
        batch.agents.take_slot(after)
        batch.transition(task, after, Verb.CLAIM, command)
        started.append(after)
    return started
