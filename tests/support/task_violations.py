"""Violations of the invariants of tasks. Each function plants one into a valid history by the smallest change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.model import DependencyRow
from tests.support.task_history_builder import PlantTaskViolation, TaskHistoryBuilder

replace = msgspec.structs.replace
TEN_MINUTES_MS = 10 * 60_000


# -- event sequence


def event_logged_twice(history: TaskHistoryBuilder) -> None:
    index = history.find_event("task.completed", "well")
    history.insert_event(index + 1, history.events[index])


def create_event_missing(history: TaskHistoryBuilder) -> None:
    history.remove_event(history.find_event("task.created", "held"))
    history.calls = [call for call in history.calls if call.response.id != "held" or call.op != "task.create"]


def forbidden_transition(history: TaskHistoryBuilder) -> None:
    """No transition leads from PAUSED to COMPLETED."""
    index = history.find_event("task.resumed", "held")
    history.change_event(index, to_state="COMPLETED")
    history.change_event(index + 1, from_state="COMPLETED")


def unknown_event(history: TaskHistoryBuilder) -> None:
    history.add_task_event("dropped", "unknown")


def progress_logged_twice(history: TaskHistoryBuilder) -> None:
    index = history.find_event("task.progressed", "long")
    history.insert_event(index + 1, history.events[index])


def retry_logged_as_backoff(history: TaskHistoryBuilder) -> None:
    history.change_event(history.find_event("task.requeued", "exhausted", 1), reason="backoff")


def failed_without_attempt(history: TaskHistoryBuilder) -> None:
    history.create_task("idle")
    history.add_task_event("idle", "failed", "FAILED", reason="failed", final=True)


def unreadable_event_data(history: TaskHistoryBuilder) -> None:
    """In an event that no other invariant needs."""
    history.add_task_event("dropped", "archived", "ARCHIVED")
    history.change_event(len(history.events) - 1, attempt="second")
    history.tasks["dropped"] = replace(history.tasks["dropped"], status="ABORTED")


EVENT_SEQUENCE: Sequence[PlantTaskViolation] = (
    event_logged_twice,
    create_event_missing,
    forbidden_transition,
    unknown_event,
    progress_logged_twice,
    retry_logged_as_backoff,
    failed_without_attempt,
    unreadable_event_data,
)


# -- attempts


def started_while_running(history: TaskHistoryBuilder) -> None:
    history.create_task("double")
    history.claim_task("double", "a1")
    lease = history.claim_task("double", "a2")
    history.change_event(len(history.events) - 1, from_state="PENDING")
    history.complete_task(lease, "a2")


def attempt_number_skipped(history: TaskHistoryBuilder) -> None:
    history.create_task("skipped")
    history.tasks["skipped"] = replace(history.tasks["skipped"], attempt=4)
    history.complete_task(history.claim_task("skipped", "a1"), "a1")


def progress_of_other_attempt(history: TaskHistoryBuilder) -> None:
    history.change_event(history.find_event("task.progressed", "long", 2), attempt=1)
    # Without the recorded calls of attempt 2, which would contradict the event.
    history.calls = [call for call in history.calls if not (call.op == "task.progress" and call.client == "a2")]


def one_token_for_two_clients(history: TaskHistoryBuilder) -> None:
    call = next(call for call in history.calls if call.op == "task.claim")
    request = replace(call.request, task_claim_id=None, agent_id=None)
    history.calls.append(replace(call, client="a2", seq=9_000, request=request))


def two_tokens_for_one_attempt(history: TaskHistoryBuilder) -> None:
    call = next(call for call in history.calls if call.op == "task.claim")
    response = replace(call.response, tasks=[replace(call.response.tasks[0], attempt_token="another")])
    history.calls.append(replace(call, client="a2", seq=9_000, optional_response=response))


def claimed_by_other_agent(history: TaskHistoryBuilder) -> None:
    index = next(i for i, call in enumerate(history.calls) if call.op == "task.claim")
    call = history.calls[index]
    history.calls[index] = replace(call, request=replace(call.request, agent_id="a2"))


MULTIPLE_HOLDERS: Sequence[PlantTaskViolation] = (
    started_while_running,
    attempt_number_skipped,
    progress_of_other_attempt,
    one_token_for_two_clients,
    two_tokens_for_one_attempt,
    claimed_by_other_agent,
)


def stale_completion_accepted(history: TaskHistoryBuilder) -> None:
    """The report that was refused as stale got a success response."""
    index = next(i for i, call in enumerate(history.calls) if call.response.error == "stale_attempt")
    call = history.calls[index]
    history.calls[index] = replace(
        call, status=200, optional_response=replace(call.response, error=None, status="COMPLETED")
    )


def stale_failure_accepted(history: TaskHistoryBuilder) -> None:
    index = next(i for i, call in enumerate(history.calls) if call.response.error == "stale_attempt")
    call = history.calls[index]
    history.calls[index] = replace(
        call, op="task.fail", status=200, optional_response=replace(call.response, error=None)
    )


def released_after_end(history: TaskHistoryBuilder) -> None:
    history.create_task("ended")
    lease = history.claim_task("ended", "a1")
    history.complete_task(lease, "a1")
    history.report("task.release", lease, "a1", 200, "COMPLETED")


STALE_COMPLETIONS: Sequence[PlantTaskViolation] = (
    stale_completion_accepted,
    stale_failure_accepted,
    released_after_end,
)


# -- acknowledged, refused and created tasks


def task_lost(history: TaskHistoryBuilder) -> None:
    history.add_call("task.create", 201, {"id": "gone"}, {"id": "gone", "status": "PENDING"})


def completion_lost(history: TaskHistoryBuilder) -> None:
    history.create_task("open")
    history.report("task.complete", history.claim_task("open", "a1"), "a1", 200, "COMPLETED")


def cancellation_lost(history: TaskHistoryBuilder) -> None:
    history.add_call("task.cancel", 200, {"id": "held"}, {"id": "held", "status": "ABORTED"})


def progress_lost(history: TaskHistoryBuilder) -> None:
    history.remove_event(history.find_event("task.progressed", "long"))


LOST_ACKNOWLEDGEMENTS: Sequence[PlantTaskViolation] = (task_lost, completion_lost, cancellation_lost, progress_lost)


def refused_task_created(history: TaskHistoryBuilder) -> None:
    history.create_task("refused")
    history.calls[-1] = replace(
        history.calls[-1], status=400, optional_response=replace(history.calls[-1].response, error="invalid_body")
    )


def created_twice(history: TaskHistoryBuilder) -> None:
    history.add_call("task.create", 201, {"id": "back", "idempotency_key": "key-back"}, {"id": "back"})


def two_tasks_for_one_key(history: TaskHistoryBuilder) -> None:
    history.create_task("twin")
    history.add_call("task.create", 200, {"id": "twin", "idempotency_key": "key-back"}, {"id": "twin"})


def logged_before_request(history: TaskHistoryBuilder) -> None:
    """Its request started after a later event was acknowledged."""
    index = next(i for i, call in enumerate(history.calls) if call.response.id == "well" and call.has_created)
    history.calls[index] = replace(history.calls[index], started=history.clock + 100.0, ended=history.clock + 110.0)


def started_by_lost_agent(history: TaskHistoryBuilder) -> None:
    history.remove_event(history.find_event("agent.revived", "a1"))


# -- rows


def row_missing(history: TaskHistoryBuilder) -> None:
    del history.tasks["dropped"]


def row_without_event(history: TaskHistoryBuilder) -> None:
    history.tasks["new"] = replace(history.tasks["well"], id="new")


def row_in_other_state(history: TaskHistoryBuilder) -> None:
    history.tasks["left"] = replace(history.tasks["left"], status="PAUSED")


def row_in_other_attempt(history: TaskHistoryBuilder) -> None:
    history.tasks["long"] = replace(history.tasks["long"], attempt=1)


ROW_MISMATCHES: Sequence[PlantTaskViolation] = (
    row_missing,
    row_without_event,
    row_in_other_state,
    row_in_other_attempt,
)


def end_not_propagated(history: TaskHistoryBuilder) -> None:
    history.tasks["dropped"] = replace(history.tasks["dropped"], dependents_pending=1)


def waits_for_ended_task(history: TaskHistoryBuilder) -> None:
    history.create_task("stuck", "well")
    history.tasks["stuck"] = replace(history.tasks["stuck"], waits_for=2)


def waits_for_past_time(history: TaskHistoryBuilder) -> None:
    history.create_task("late")
    history.tasks["late"] = replace(history.tasks["late"], waits_for=1, available_at=history.clock)
    history.clock += TEN_MINUTES_MS


def held_by_lost_agent(history: TaskHistoryBuilder) -> None:
    history.create_task("orphan")
    history.claim_task("orphan", "a1")
    history.tasks["orphan"] = replace(history.tasks["orphan"], agent_status="ERROR")


def held_by_silent_agent(history: TaskHistoryBuilder) -> None:
    history.create_task("orphan")
    history.claim_task("orphan", "a1")
    history.tasks["orphan"] = replace(history.tasks["orphan"], agent_stale_at=history.clock)
    history.clock += TEN_MINUTES_MS


def held_past_timeout(history: TaskHistoryBuilder) -> None:
    history.create_task("slow")
    history.claim_task("slow", "a1")
    history.tasks["slow"] = replace(history.tasks["slow"], timeout_at=history.clock)
    history.clock += TEN_MINUTES_MS


UNFINISHED_WORK: Sequence[PlantTaskViolation] = (
    end_not_propagated,
    waits_for_ended_task,
    waits_for_past_time,
    held_by_lost_agent,
    held_by_silent_agent,
    held_past_timeout,
)


# -- dependencies and checkpoints


def started_before_dependency(history: TaskHistoryBuilder) -> None:
    history.create_task("first")
    history.create_task("second", "first")
    history.complete_task(history.claim_task("second", "a1"), "a1")
    history.complete_task(history.claim_task("first", "a1"), "a1")


def ran_despite_failed_dependency(history: TaskHistoryBuilder) -> None:
    history.tasks["without"] = replace(history.tasks["without"], on_dependency_failure="fail")


def started_before_dependency_existed(history: TaskHistoryBuilder) -> None:
    history.create_task("early")
    history.complete_task(history.claim_task("early", "a1"), "a1")
    history.create_task("new")
    history.complete_task(history.claim_task("new", "a1"), "a1")
    history.dependencies.append(DependencyRow("z", "early", "new"))


def dependency_added_later(history: TaskHistoryBuilder) -> None:
    history.dependencies.append(DependencyRow("z", "left", "tail"))


def started_without_unblocked_event(history: TaskHistoryBuilder) -> None:
    history.remove_event(history.find_event("task.unblocked", "left"))


DEPENDENCY_VIOLATIONS: Sequence[PlantTaskViolation] = (
    started_before_dependency,
    ran_despite_failed_dependency,
    started_before_dependency_existed,
    dependency_added_later,
    started_without_unblocked_event,
)


def set_claimed_checkpoint(history: TaskHistoryBuilder, content: bytes) -> None:
    """Change the checkpoint that the second attempt at the task `long` received."""
    for i, call in enumerate(history.calls):
        if call.op == "task.claim" and call.response.tasks[0].id == "long" and call.client == "a2":
            lease = replace(call.response.tasks[0], checkpoint_data=msgspec.Raw(content))
            history.calls[i] = replace(call, optional_response=replace(call.response, tasks=[lease]))


def resumed_without_checkpoint(history: TaskHistoryBuilder) -> None:
    set_claimed_checkpoint(history, b"{}")


def resumed_from_older_checkpoint(history: TaskHistoryBuilder) -> None:
    set_claimed_checkpoint(history, b'{"at":1}')


def resumed_from_refused_checkpoint(history: TaskHistoryBuilder) -> None:
    set_claimed_checkpoint(history, b'{"at":4}')


RESUME_VIOLATIONS: Sequence[PlantTaskViolation] = (
    resumed_without_checkpoint,
    resumed_from_older_checkpoint,
    resumed_from_refused_checkpoint,
)

TASK_VIOLATIONS: dict[str, Sequence[PlantTaskViolation]] = {
    "story": EVENT_SEQUENCE,
    "one-key": (created_twice, two_tasks_for_one_key),
    "one-holder": MULTIPLE_HOLDERS,
    "stale": STALE_COMPLETIONS,
    "acknowledged": LOST_ACKNOWLEDGEMENTS,
    "refused": (refused_task_created,),
    "after-the-end": (started_by_lost_agent,),
    "order": (logged_before_request,),
    "agreement": ROW_MISMATCHES,
    "rest": UNFINISHED_WORK,
    "dependencies": DEPENDENCY_VIOLATIONS,
    "resumed": RESUME_VIOLATIONS,
}
