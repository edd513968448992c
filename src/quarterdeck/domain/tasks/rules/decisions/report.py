"""Reports of the holder of an attempt: start, progress, complete, fail and release."""

from __future__ import annotations

from quarterdeck.core.attempts import is_latest_attempt
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Abort, Complete, Fail, Progress, Release, Start
from quarterdeck.domain.tasks.model.rows import ContentUpdate, State, Task, Verb
from quarterdeck.domain.tasks.rules import errors, states
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.decisions.dependents import unblock
from quarterdeck.domain.tasks.rules.idempotency import claim_key, command_key
from quarterdeck.domain.tasks.rules.states import HELD, Failure


def attempt_problem(task: Task, token: str | None) -> Problem | None:
    """The error if `token` is not the token of the current attempt, or None."""
    if token is None:
        return errors.token_required()
    return None if is_latest_attempt(task, token, HELD) else errors.stale_attempt(task)


def start(batch: Batch, command: Start, task: Task) -> Task | Problem:
    if problem := attempt_problem(task, command.attempt_token):
        return problem
    return start_assigned(batch, command, task)


def start_assigned(batch: Batch, command: Command, task: Task) -> Task:
    """Start an assigned task. A task that runs already stays as it is."""
    if task.status is not State.ASSIGNED:
        return task
    after = states.start(task, batch.loaded.timeouts.overdue_ms, batch.now)
    batch.transition(task, after, Verb.START, command)
    return after


def progress(batch: Batch, command: Progress, task: Task) -> Task | Problem:
    if problem := attempt_problem(task, command.attempt_token):
        return problem
    key = command_key(command)
    if reported := batch.keys.find(key, command.request_digest):
        # The report is a repeat and its costs are already charged. Ignore it: a later report may have followed.
        return reported if isinstance(reported, Problem) else task
    batch.keys.add(key, command.request_digest, command.id)
    task = batch.charge(task, command.costs)
    after = states.update_progress(task, command, batch.loaded.timeouts.hung_ms, batch.now)
    batch.update(after)
    if command.checkpoint is not None:
        batch.content.update(task.ref, ContentUpdate(checkpoint_data=command.checkpoint))
    has_progressed = (after.progress_percent, after.current_step) != (task.progress_percent, task.current_step)
    # A report of costs alone emits an event too. If the response to COMMIT is lost, the batch counts as committed if
    # its events are in the log; without an event it would be retried and the costs charged twice.
    if command.costs or has_progressed:
        batch.tasks.emit("task.progressed", task.status, after, command)
    return after


def complete(batch: Batch, command: Complete, task: Task) -> Task | Problem:
    if task.status is State.PAUSED and command.attempt_token is None:
        # A paused task has no attempt and therefore no token, but a user may complete it.
        if problem := batch.loaded.permission_problem(command, "tasks.complete_paused"):
            return problem
    elif problem := attempt_problem(task, command.attempt_token):
        return task if is_latest_attempt(task, command.attempt_token, (State.COMPLETED,)) else problem
    batch.agents.free_slot(task)
    batch.content.update(task.ref, ContentUpdate(output_result=command.output, summary=command.summary))
    task = batch.charge(task, command.costs)
    after = states.complete(task, batch.now)
    batch.transition(task, after, Verb.COMPLETE, command)
    return unblock(batch, after, command)


def fail(batch: Batch, command: Fail, task: Task) -> Task | Problem:
    if problem := attempt_problem(task, command.attempt_token):
        return task if is_latest_attempt(task, command.attempt_token, (State.FAILED,)) else problem
    if command.stack_trace is not None:
        batch.stack_traces.append((task, command.stack_trace))
    batch.content.update(task.ref, ContentUpdate(last_error=command.error))
    task = batch.charge(task, command.costs)
    return fail_attempt(batch, task, Verb.FAIL, Failure("failed", command.jitter, command.retryable), command)


def fail_attempt(batch: Batch, task: Task, verb: Verb, failure: Failure, command: Fail | Abort) -> Task:
    after = states.fail(task, verb, failure, batch.loaded.timeouts.backoff_max_ms, batch.now)
    data: dict[str, object] = {"reason": failure.reason}
    if after.final:
        verb = Verb.FAIL
        data = {"exhausted": True, **data} if failure.retryable else data
    batch.agents.free_slot(task)
    batch.transition(task, after, verb, command, data)
    return after


def release(batch: Batch, command: Release, task: Task) -> Task | Problem:
    if problem := attempt_problem(task, command.attempt_token):
        return problem
    # Clear the record of the claim id, so that a client that never got the response can repeat the claim.
    batch.keys.add(claim_key(task.zone_id, task.agent_id, task.claim_id), "", "")
    after = states.release(task, batch.now)
    batch.agents.free_slot(task)
    batch.transition(task, after, Verb.RELEASE, command)
    batch.queues.push_if_ready(after)
    return after
