"""Create a task."""

from __future__ import annotations

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Create
from quarterdeck.domain.tasks.model.rows import CreatedTask, Strategy
from quarterdeck.domain.tasks.rules import errors, ranking, states
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.batch_input import TaskClass
from quarterdeck.domain.tasks.rules.decisions.dependents import fail_for_dependency
from quarterdeck.domain.tasks.rules.idempotency import command_key


def create(batch: Batch, command: Create) -> CreatedTask | Problem:
    # Check the key first: a repeated request gets the same response even if the zone has ended since.
    key = command_key(command)
    created_id = batch.keys.find(key, command.request_digest)
    if isinstance(created_id, Problem):
        return created_id
    if created_id is not None:
        existing = batch.tasks.get((command.zone_id, created_id))
        return CreatedTask(existing, False) if existing is not None else errors.task_not_found(created_id)
    if problem := batch.loaded.zone_problems.get(command.zone_id):
        return problem
    if (command.zone_id, command.id) in batch.tasks:
        return errors.task_exists(command.id)
    check = batch.dependencies.check(command.zone_id, command.depends_on)
    if isinstance(check, Problem):
        return check

    strategy = batch.loaded.strategies.get(command.zone_id, Strategy.PRIORITY)
    rank = ranking.new_rank(command, strategy, batch.fair_ranks, batch.now)
    task = states.create(command, rank, strategy, len(check.unmet), batch.now)
    ref, class_ref = task.ref, (task.zone_id, task.class_id)
    batch.tasks.insert(task)
    batch.content.insert(ref, command.content, command.tags)
    batch.dependencies.put(ref, command.depends_on, check.unmet)
    batch.new_classes.setdefault(class_ref, ref)
    batch.queues.add_class(class_ref, TaskClass(command.task_type, frozenset(command.required_capabilities)))
    batch.keys.add(key, command.request_digest, command.id)
    batch.tasks.emit("task.created", None, task, command)
    if check.failed is not None and command.on_dependency_failure == "fail":
        task = fail_for_dependency(batch, task, check.failed, command)
    batch.queues.push_if_ready(task)
    return CreatedTask(task, True, batch.content.new[ref])
