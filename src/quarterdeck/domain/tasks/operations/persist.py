"""Writes the rows and events of a decided batch, with one statement per kind of change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.tasks.model.rows import TABLE, ClaimedTask, Content, ContentUpdate, State, Task, TaskRef
from quarterdeck.domain.tasks.operations import costs, dependency_reads, logs
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.domain.tasks.rules.batch_input import PendingEvent
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.secrets.rotation import SecretColumns
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement, chunks

NO_UPDATE = ContentUpdate()
Contents = dict[TaskRef, tuple[Content, tuple[str, ...]]]
"""Task → (content, dependencies)"""
_ChangedTask = tuple[Task, Task, ContentUpdate]
"""(task as loaded, task as changed, changes to its content)"""


async def persist(tx: Transaction, decider: BatchDecider, claimed: Sequence[ClaimedTask]) -> Contents:
    """Write all changes of a batch. Returns the contents of the claimed tasks."""
    _insert_tasks(tx, decider)
    _write_dependencies(tx, decider)
    if fair_ranks := decider.changed_fair_ranks():
        tx.write(Q.task_fair_ranks_set(batch=[(*creator, rank) for creator, rank in sorted(fair_ranks.items())]))
    contents = await _update_tasks(tx, decider, claimed)
    if decider.held_count_changes or decider.seen_agents:
        await agents.adjust_held(tx, decider.held_count_changes, decider.seen_agents)
    if decider.activated_agents:
        await agents.revive(tx, decider.activated_agents)
    if decider.costs:
        await costs.write_costs(tx, decider.costs, tx.now)
    if decider.key_records_to_store:
        tx.write(idempotency.store_records(decider.key_records_to_store, tx.now))
    if decider.stack_traces:
        logs.write_stack_traces(tx, decider.stack_traces)
    for pending in decider.events:
        tx.emit(to_event(pending))
    return contents


def _insert_tasks(tx: Transaction, decider: BatchDecider) -> None:
    if not decider.new_task_contents:
        return
    rows = [
        (*msgspec.structs.astuple(decider.task(ref)), *msgspec.structs.astuple(content))
        for ref, content in decider.new_task_contents.items()
    ]
    for piece in chunks(rows):
        tx.write(Q.tasks_insert(batch=piece))
    class_rows = [
        (*class_ref, decider.task(ref).task_type, decider.new_task_contents[ref].required_capabilities, tx.now)
        for class_ref, ref in sorted(decider.new_classes.items())
    ]
    tx.write(Q.task_classes_insert(batch=class_rows))


def _write_dependencies(tx: Transaction, decider: BatchDecider) -> None:
    """Write the dependencies and tags of new and changed tasks."""
    replaced = sorted(ref for ref in decider.new_dependencies if ref not in decider.new_task_contents)
    if replaced:
        tx.write(Q.task_dependencies_remove(batch=replaced))
    edges = [
        (*ref, dependency, int((ref, dependency) in decider.met_dependencies))
        for ref, depends_on in decider.new_dependencies.items()
        for dependency in depends_on
    ]
    for piece in chunks(edges):
        tx.write(Q.task_dependencies_insert(batch=piece))
    met_changes = [
        (*ref, dependency, 1) for ref, dependency in decider.met_dependencies if ref not in decider.new_dependencies
    ]
    met_changes += [(*ref, dependency, 0) for ref, dependency in decider.reopened_dependencies]
    for piece in chunks(sorted(met_changes)):
        tx.write(Q.task_dependencies_set_met(batch=piece))
    if removed_tags := sorted(decider.removed_tags):
        tx.write(Q.task_tags_remove(batch=removed_tags))
    tags = sorted(
        (zone_id, tag, task_id) for (zone_id, task_id), task_tags in decider.new_tags.items() for tag in task_tags
    )
    for new_tags in chunks(tags):
        tx.write(Q.task_tags_insert(batch=new_tags))


async def _update_tasks(tx: Transaction, decider: BatchDecider, claimed: Sequence[ClaimedTask]) -> Contents:
    """Update changed tasks and read the contents of claimed tasks, in one round trip."""
    updates = _update_statements(decider)
    refs = [(item.task.zone_id, item.task.id) for item in claimed]
    unread_refs = sorted({ref for ref in refs if ref not in decider.new_task_contents})
    reads: list[BoundStatement] = [Q.tasks_get_content(batch=unread_refs)] if unread_refs else []
    reads += dependency_reads.dependency_statements(
        decider.tasks(unread_refs), dict.fromkeys(unread_refs, dependency_reads.LISTED_DEPENDENCIES_MAX)
    )
    if not updates and not reads:
        return _new_contents(decider, refs)
    results = await tx.read(*updates, *reads)
    updated_count = sum(len(result) for result in results[: len(updates)])
    if updated_count != len(decider.originals):
        # The status or attempt of a row is not the loaded one: a writer has changed it without locking the zone.
        raise RuntimeError("tasks changed while their zone was locked")
    content_rows, *dependency_rows = results[len(updates) :] if reads else [[]]
    dependencies = dependency_reads.group_by_task(row for rows in dependency_rows for row in rows)
    stored_contents = decode([row[2:] for row in content_rows], Content)
    contents: Contents = _new_contents(decider, refs)
    for row, content in zip(content_rows, stored_contents, strict=True):
        ref = (str(row[0]), str(row[1]))
        contents[ref] = (content, dependencies.get(ref, ()))
    return contents


def _update_statements(decider: BatchDecider) -> list[BoundStatement]:
    claims: list[_ChangedTask] = []
    completions: list[_ChangedTask] = []
    others: list[_ChangedTask] = []
    for ref, before in decider.originals.items():
        changed_task = (before, decider.task(ref), decider.content_updates.get(ref, NO_UPDATE))
        if decider.is_only_change(ref, decider.claim_changes.get(ref)):
            claims.append(changed_task)
        elif decider.is_only_change(ref, decider.completion_changes.get(ref)):
            completions.append(changed_task)
        else:
            others.append(changed_task)
    return [
        *(_start_statement(piece) for piece in chunks(claims)),
        *(_complete_statement(piece) for piece in chunks(completions)),
        *(_update_statement(piece) for piece in chunks(others)),
    ]


def _new_contents(decider: BatchDecider, refs: Iterable[TaskRef]) -> Contents:
    """Return the contents of tasks that were created and claimed in the same batch."""
    return {
        ref: (decider.new_task_contents[ref], decider.new_dependencies[ref][: dependency_reads.LISTED_DEPENDENCIES_MAX])
        for ref in refs
        if ref in decider.new_task_contents
    }


def _start_statement(changed_tasks: Sequence[_ChangedTask]) -> BoundStatement:
    batch = [
        (
            task.zone_id,
            task.id,
            before.status,
            before.attempt,
            task.agent_id,
            task.session_key,
            task.estimated_completion_at,
            task.timeout_at,
            task.attempt_token,
            task.claim_id,
            task.overdue_at,
            task.updated_at,
        )
        for before, task, _ in changed_tasks
    ]
    return Q.tasks_start(batch=batch)


def _complete_statement(changed_tasks: Sequence[_ChangedTask]) -> BoundStatement:
    batch = [
        (task.zone_id, task.id, before.status, before.attempt, task.updated_at, update.output_result, update.summary)
        for before, task, update in changed_tasks
    ]
    return Q.tasks_complete(batch=batch)


def _update_statement(changed_tasks: Sequence[_ChangedTask]) -> BoundStatement:
    batch = [
        (
            task.zone_id,
            task.id,
            before.status,
            before.attempt,
            task.status,
            task.priority,
            task.agent_id,
            task.session_key,
            task.progress_percent,
            task.current_step,
            task.estimated_completion_at,
            task.retry_count,
            task.rank,
            task.waits_for,
            task.dependency_count,
            task.unmet_dependencies,
            task.available_at,
            task.timeout_at,
            task.attempt,
            task.attempt_token,
            task.claim_id,
            task.final,
            task.reason,
            task.dependents_pending,
            task.warned_at,
            task.progress_at,
            task.overdue_at,
            task.usd_micros,
            task.input_tokens,
            task.output_tokens,
            task.updated_at,
            task.assigned_at,
            task.started_at,
            task.completed_at,
            task.failed_at,
            update.last_error,
            update.output_result,
            update.summary,
            update.checkpoint_data,
            update.metadata_json,
            update.tags,
        )
        for before, task, update in changed_tasks
    ]
    return Q.tasks_update(batch=batch)


def to_event(pending: PendingEvent) -> NewEvent:
    task = pending.task
    data: dict[str, object] = {
        "taskType": task.task_type,
        "agentId": task.agent_id,
        "attempt": task.attempt,
        "priority": task.priority,
    }
    if task.session_key is not None:
        data["sessionKey"] = task.session_key
    if pending.type == "task.progressed":
        data |= {"progressPercent": task.progress_percent, "currentStep": task.current_step}
    if task.status in (State.FAILED, State.ABORTED):
        data |= {"retryCount": task.retry_count, "maxRetries": task.max_retries, "final": bool(task.final)}
        if not task.final:
            data["availableAt"] = iso(task.available_at)
    if pending.retries_exhausted:
        data["exhausted"] = True
    if pending.reason is not None:
        data["reason"] = pending.reason
    if pending.cycle:
        data["cycle"] = [*pending.cycle[:100]]
    encoded = msgspec.json.encode(data).decode()
    return NewEvent(
        pending.type, task.zone_id, task.id, pending.actor, pending.from_state, task.status, encoded, pending.trace
    )


SECRET_COLUMNS = SecretColumns(
    TABLE,
    ("input_context", "output_result", "checkpoint_data"),
    COORDINATOR.tasks_encrypted,
    COORDINATOR.tasks_reencrypt,
)
