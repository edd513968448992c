"""Writes the rows and events of a decided batch, with one statement per kind of change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.batch_rows import PendingEvent
from quarterdeck.core.clock import iso
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.costs import operations as costs
from quarterdeck.domain.tasks.model.rows import TABLE, ClaimedTask, Content, ContentUpdate, State, Task, TaskRef, Verb
from quarterdeck.domain.tasks.operations import dependency_reads, log_lines
from quarterdeck.domain.tasks.queries import COORDINATOR, Q
from quarterdeck.domain.tasks.rules.batch import Batch
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


async def persist(tx: Transaction, batch: Batch, claimed: Sequence[ClaimedTask]) -> Contents:
    """Write all changes of a batch. Returns the contents of the claimed tasks."""
    _insert_tasks(tx, batch)
    _write_dependencies(tx, batch)
    _write_tags(tx, batch)
    if fair_ranks := batch.fair_ranks.changed():
        tx.write(Q.task_fair_ranks_set(batch=[(*creator, rank) for creator, rank in sorted(fair_ranks.items())]))
    contents = await _update_tasks(tx, batch, [item.task for item in claimed])
    if batch.agents.held_changes or batch.agents.seen:
        await agents.adjust_held(tx, batch.agents.held_changes, batch.agents.seen)
    if batch.agents.activated:
        await agents.revive(tx, batch.agents.activated)
    if batch.costs:
        await costs.write_costs(tx, batch.costs, tx.now)
    if batch.keys.new_records:
        tx.write(idempotency.store_records(batch.keys.new_records, tx.now))
    if batch.stack_traces:
        log_lines.write_stack_traces(tx, batch.stack_traces)
    for pending in batch.tasks.events:
        tx.emit(to_event(pending))
    return contents


def _insert_tasks(tx: Transaction, batch: Batch) -> None:
    new_tasks = batch.tasks.inserts()
    if not new_tasks:
        return
    new_contents = batch.content.new
    rows = [(*msgspec.structs.astuple(task), *msgspec.structs.astuple(new_contents[task.ref])) for task in new_tasks]
    for piece in chunks(rows):
        tx.write(Q.tasks_insert(batch=piece))
    class_rows = [
        (*class_ref, batch.tasks[ref].task_type, new_contents[ref].required_capabilities, tx.now)
        for class_ref, ref in sorted(batch.new_classes.items())
    ]
    tx.write(Q.task_classes_insert(batch=class_rows))


def _write_dependencies(tx: Transaction, batch: Batch) -> None:
    dependencies = batch.dependencies
    replaced = sorted(ref for ref in dependencies.new if ref not in batch.content.new)
    if replaced:
        tx.write(Q.task_dependencies_remove(batch=replaced))
    edges = [
        (*ref, dependency, int((ref, dependency) in dependencies.met))
        for ref, depends_on in dependencies.new.items()
        for dependency in depends_on
    ]
    for piece in chunks(edges):
        tx.write(Q.task_dependencies_insert(batch=piece))
    met_changes = [(*ref, dependency, 1) for ref, dependency in dependencies.met if ref not in dependencies.new]
    met_changes += [(*ref, dependency, 0) for ref, dependency in dependencies.reopened]
    for piece in chunks(sorted(met_changes)):
        tx.write(Q.task_dependencies_set_met(batch=piece))


def _write_tags(tx: Transaction, batch: Batch) -> None:
    if removed_tags := sorted(batch.content.removed_tags):
        tx.write(Q.task_tags_remove(batch=removed_tags))
    tags = sorted(
        (zone_id, tag, task_id) for (zone_id, task_id), task_tags in batch.content.new_tags.items() for tag in task_tags
    )
    for new_tags in chunks(tags):
        tx.write(Q.task_tags_insert(batch=new_tags))


async def _update_tasks(tx: Transaction, batch: Batch, claimed: Sequence[Task]) -> Contents:
    """Update changed tasks and read the contents of claimed tasks, in one round trip."""
    changed_tasks = batch.tasks.updates()
    updates = _update_statements(batch, changed_tasks)
    unread_refs = sorted({task.ref for task in claimed if task.ref not in batch.content.new})
    reads: list[BoundStatement] = [Q.tasks_get_content(batch=unread_refs)] if unread_refs else []
    reads += dependency_reads.dependency_statements(
        [batch.tasks[ref] for ref in unread_refs], dict.fromkeys(unread_refs, dependency_reads.LISTED_DEPENDENCIES_MAX)
    )
    contents: Contents = {
        # Created and claimed in the same batch.
        task.ref: (
            batch.content.new[task.ref],
            batch.dependencies.new[task.ref][: dependency_reads.LISTED_DEPENDENCIES_MAX],
        )
        for task in claimed
        if task.ref in batch.content.new
    }
    if not updates and not reads:
        return contents
    results = await tx.read(*updates, *reads)
    updated_count = sum(len(result) for result in results[: len(updates)])
    if updated_count != len(changed_tasks):
        # The status or attempt of a row is not the loaded one: a writer has changed it without locking the zone.
        raise RuntimeError("tasks changed while their zone was locked")
    content_rows, *dependency_rows = results[len(updates) :] if reads else [[]]
    dependencies = dependency_reads.group_by_task(row for rows in dependency_rows for row in rows)
    stored_contents = decode([row[2:] for row in content_rows], Content)
    for row, content in zip(content_rows, stored_contents, strict=True):
        ref = (str(row[0]), str(row[1]))
        contents[ref] = (content, dependencies.get(ref, ()))
    return contents


def _update_statements(batch: Batch, changed_tasks: Sequence[tuple[Task, Task]]) -> list[BoundStatement]:
    claims: list[_ChangedTask] = []
    completions: list[_ChangedTask] = []
    others: list[_ChangedTask] = []
    # These verbs have statements that write fewer columns.
    groups = {Verb.CLAIM: claims, Verb.COMPLETE: completions}
    for before, task in changed_tasks:
        verb = batch.only_verb(task.ref)
        group = others if verb is None else groups.get(verb, others)
        group.append((before, task, batch.content.updates.get(task.ref, NO_UPDATE)))
    return [
        *(_start_statement(piece) for piece in chunks(claims)),
        *(_complete_statement(piece) for piece in chunks(completions)),
        *(_update_statement(piece) for piece in chunks(others)),
    ]


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


def to_event(pending: PendingEvent[Task]) -> NewEvent:
    task = pending.row
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
    encoded = msgspec.json.encode({**data, **pending.data}).decode()
    trace = pending.trace or task.trace
    return NewEvent(pending.type, task.zone_id, task.id, pending.actor, pending.from_state, task.status, encoded, trace)


SECRET_COLUMNS = SecretColumns(
    TABLE,
    ("input_context", "output_result", "checkpoint_data"),
    COORDINATOR.tasks_encrypted,
    COORDINATOR.tasks_reencrypt,
)
