"""The task decider: creation, claims, attempt tokens, attempts, and commands of operators in every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Conflict
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.costs.model import Cost
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    AbortCondition,
    Archive,
    Assign,
    Cancel,
    Complete,
    Fail,
    MakeAvailable,
    Patch,
    Pause,
    Progress,
    RecordLaunch,
    Release,
    Resume,
    Retry,
    Start,
    Warn,
)
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, CreatedTask, State, Strategy, Task, WaitsFor
from quarterdeck.domain.tasks.rules.batch_input import DependencyState
from quarterdeck.domain.tasks.rules.idempotency import CREATE_OPERATION
from tests.support.builders import NOW, ZONE, caller
from tests.support.task_rules import (
    AGENT_ID,
    CREATOR,
    TIMEOUTS,
    agent_info,
    claim_command,
    claim_ids,
    complete_command,
    create_all,
    create_command,
    decided_events,
    fail_command,
    new_decider,
    require_code,
    require_task,
    task_row,
)


class TaskFields(TypedDict):
    zone_id: str
    caller: Caller
    id: str


class ServerTaskFields(TypedDict):
    zone_id: str
    id: str


BY_CALLER: TaskFields = {"zone_id": ZONE, "caller": CREATOR, "id": "t"}
BY_SERVER: ServerTaskFields = {"zone_id": ZONE, "id": "t"}
STATE_CONFLICT = "task_state_conflict"


def test_new_task_is_ready_unless_run_at_is_in_the_future() -> None:
    decider = new_decider()
    first, second = create_all(decider, create_command("t1"), create_command("t2", run_at=NOW + 1))
    assert (first.status, first.waits_for) == (State.PENDING, WaitsFor.NOTHING)
    assert (second.waits_for, second.available_at) == (WaitsFor.TIME, NOW + 1)
    assert claim_ids(decider, claim_command(5)) == ["t1"]


def test_idempotency_key_returns_the_same_task_and_refuses_another_request() -> None:
    key = Key(ZONE, CREATOR.client_id, CREATE_OPERATION, "k")
    decider = new_decider(
        task_row(task_id="old"), keys={key: KeyRecord(ZONE, CREATOR.client_id, CREATE_OPERATION, "k", "d", "old")}
    )
    again = decider.decide(create_command("new", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == ("old", False)
    changed = create_command("new", idempotency_key="k", request_digest="other")
    assert require_code(decider.decide(changed)) == "idempotency_key_conflict"
    assert not decider.batch.content.new


def test_idempotency_key_creates_one_task_within_a_batch() -> None:
    decider = new_decider()
    [first] = create_all(decider, create_command("t1", idempotency_key="k"))
    again = decider.decide(create_command("t2", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == (first.id, False)
    assert [record.subject_id for record in decider.batch.keys.new_records] == ["t1"]


def test_existing_task_id_is_refused() -> None:
    assert require_code(new_decider(task_row()).decide(create_command("t"))) == "task_exists"


def test_ended_zone_refuses_new_tasks() -> None:
    decider = new_decider(zone_problems={ZONE: Conflict("zone_ended", "")})
    assert require_code(decider.decide(create_command())) == "zone_ended"


def test_ended_zone_refuses_claim_and_assign() -> None:
    decider = new_decider(task_row(), zone_problems={ZONE: Conflict("zone_ended", "")})
    assert require_code(decider.decide(claim_command())) == "zone_ended"
    assert require_code(decider.decide(Assign(**BY_SERVER, agent_id=AGENT_ID, attempt_token="k"))) == STATE_CONFLICT


def test_claim_orders_by_priority_then_age() -> None:
    decider = new_decider()
    create_all(
        decider,
        create_command("t1"),
        create_command("t2", priority=9),
        create_command("t3", priority=9),
        create_command("t4", priority=1),
    )
    assert claim_ids(decider, claim_command(4)) == ["t2", "t3", "t1", "t4"]


def test_claim_is_limited_by_capabilities_and_free_slots() -> None:
    decider = new_decider(agents={(ZONE, AGENT_ID): agent_info("python", free_slots=2)})
    create_all(
        decider,
        create_command("t1", required=("python", "rust")),
        *(create_command(f"t{n}", required=("python",)) for n in (2, 3, 4)),
    )
    assert claim_ids(decider, claim_command(10)) == ["t2", "t3"]
    assert claim_ids(decider, claim_command(10, token="second")) == []
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): 2}


def test_claim_can_be_narrowed_by_task_type_and_capabilities() -> None:
    decider = new_decider(agents={(ZONE, AGENT_ID): agent_info("python", "rust")})
    create_all(decider, create_command("t1", required=("rust",)), create_command("t2", task_type="research"))
    assert (
        claim_ids(decider, claim_command(5, capabilities=frozenset({"python"}), task_types=frozenset({"development"})))
        == []
    )
    assert claim_ids(decider, claim_command(5, task_types=frozenset({"research"}))) == ["t2"]


def test_claim_for_an_unknown_terminated_or_foreign_agent_is_refused() -> None:
    assert require_code(new_decider().decide(claim_command(agent="unknown"))) == "agent_not_found"
    ended = agent_info(problem=Conflict("agent_terminated", ""))
    assert require_code(new_decider(agents={(ZONE, AGENT_ID): ended}).decide(claim_command())) == "agent_terminated"
    other_agent = msgspec.structs.replace(caller("other"), agent_id="b")
    assert (
        require_code(new_decider().decide(msgspec.structs.replace(claim_command(), caller=other_agent)))
        == "agent_required"
    )


def test_repeated_claim_id_returns_the_same_tasks_even_to_a_draining_agent() -> None:
    held = msgspec.structs.replace(task_row(State.RUNNING), claim_id="c")
    draining = agent_info(problem=Conflict("agent_draining", ""))
    decider = new_decider(held, task_row(task_id="t2"), agents={(ZONE, AGENT_ID): draining})
    assert claim_ids(decider, claim_command(1, claim_id="c")) == ["t"]
    assert not decider.batch.tasks.events


def test_task_over_budget_stays_pending_and_does_not_block_others() -> None:
    decider = new_decider(is_over_budget=lambda row: row.id == "t1")
    create_all(decider, create_command("t1"), create_command("t2"))
    assert claim_ids(decider, claim_command(2)) == ["t2"]
    assert decider.batch.tasks[ZONE, "t1"].status is State.PENDING


def test_fair_strategy_alternates_between_creators() -> None:
    decider = new_decider(strategies={ZONE: Strategy.FAIR})
    many, few, late_creator = (msgspec.structs.replace(CREATOR, subject=name) for name in ("many", "few", "late"))
    create_all(
        decider,
        *(create_command(f"m{n}", as_caller=many) for n in range(4)),
        create_command("f1", as_caller=few),
        create_command("f2", as_caller=few),
    )
    assert claim_ids(decider, claim_command(6)) == ["f1", "m0", "f2", "m1", "m2", "m3"]
    [late] = create_all(decider, create_command("l", as_caller=late_creator))
    assert late.rank == 5, "a new creator ranks directly after the rank claimed last"


def test_sjf_strategy_claims_the_shortest_task_first() -> None:
    decider = new_decider(strategies={ZONE: Strategy.SJF})
    create_all(
        decider,
        create_command("none"),
        create_command("long", estimated_duration_minutes=9),
        create_command("short", estimated_duration_minutes=1),
    )
    assert claim_ids(decider, claim_command(3)) == ["short", "long", "none"]


# -- attempt tokens ----------------------------------------------------------------------------------------------

REPORTS: dict[str, Callable[[str | None], Complete | Fail | Progress | Start]] = {
    "complete": lambda token: complete_command(token=token),
    "fail": lambda token: fail_command(token=token),
    "progress": lambda token: Progress(**BY_CALLER, attempt_token=token, percent=1, step=None, checkpoint=None),
    "start": lambda token: Start(**BY_CALLER, attempt_token=token),
}


@pytest.mark.parametrize("verb", REPORTS)
@pytest.mark.parametrize("status", [State.ASSIGNED, State.RUNNING])
def test_report_needs_the_token_of_the_current_attempt(verb: str, status: State) -> None:
    for token, expected in ((None, "attempt_token_required"), ("older", "stale_attempt")):
        decider = new_decider(task_row(status))
        assert require_code(decider.decide(REPORTS[verb](token))) == expected
        assert not decider.batch.tasks.updates()
        assert not decider.batch.tasks.events
    assert require_task(new_decider(task_row(status)).decide(REPORTS[verb]("k"))).id == "t"


@pytest.mark.parametrize("verb", REPORTS)
def test_report_by_another_agent_is_refused_as_stale_attempt(verb: str) -> None:
    other_agent = msgspec.structs.replace(caller("other"), agent_id="b")
    command = msgspec.structs.replace(REPORTS[verb]("k"), caller=other_agent)
    assert require_code(new_decider(task_row(State.RUNNING)).decide(command)) == "stale_attempt"


def test_repeated_completion_succeeds_and_logs_one_event() -> None:
    decider = new_decider(task_row(State.RUNNING))
    assert require_task(decider.decide(complete_command())).status is State.COMPLETED
    assert require_task(decider.decide(complete_command())).status is State.COMPLETED
    assert decided_events(decider) == [("task.completed", "t")]
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): -1}
    assert require_code(decider.decide(fail_command())) == "stale_attempt"


def test_repeated_failure_report_succeeds_and_counts_one_retry() -> None:
    decider = new_decider(task_row(State.RUNNING))
    assert require_task(decider.decide(fail_command())).retry_count == 1
    assert require_task(decider.decide(fail_command())).retry_count == 1
    assert decided_events(decider) == [("task.failed", "t")]


def test_paused_task_can_be_completed_without_token_with_permission() -> None:
    assert (
        require_task(new_decider(task_row(State.PAUSED)).decide(complete_command(token=None))).status is State.COMPLETED
    )
    problem = Conflict("forbidden_role", "")
    decider = new_decider(
        task_row(State.PAUSED),
        permission_problem=lambda command, permission: problem if permission == "tasks.complete_paused" else None,
    )
    assert require_code(decider.decide(complete_command(token=None))) == "forbidden_role"


# -- attempts ----------------------------------------------------------------------------------------------------


def test_failed_attempt_is_retried_with_growing_backoff_until_retries_are_exhausted() -> None:
    decider = new_decider(task_row(State.RUNNING))
    first = require_task(decider.decide(fail_command()))
    assert (first.status, first.waits_for, first.available_at) == (State.FAILED, WaitsFor.TIME, NOW + 10_000)
    later = new_decider(first, now=first.available_at)
    assert require_task(later.decide(MakeAvailable(**BY_SERVER))).status is State.PENDING
    assert claim_ids(later, claim_command(token="k2")) == ["t"]
    second = require_task(later.decide(fail_command(token="k2")))
    assert second.available_at == first.available_at + 20_000
    last = new_decider(second, now=second.available_at)
    last.decide(MakeAvailable(**BY_SERVER))
    claim_ids(last, claim_command(token="k3"))
    ended = require_task(last.decide(fail_command(token="k3")))
    assert (ended.status, ended.final, ended.dependents_pending) == (State.FAILED, 1, 1)
    assert last.batch.tasks.events[-1].data["exhausted"]
    assert require_task(last.decide(MakeAvailable(**BY_SERVER))) == ended


def test_non_retryable_failure_is_final_without_an_exhausted_alert() -> None:
    decider = new_decider(task_row(State.RUNNING))
    assert require_task(decider.decide(fail_command(retryable=False))).final == 1
    assert "exhausted" not in decider.batch.tasks.events[-1].data


def test_task_is_not_made_available_before_its_backoff_ends() -> None:
    waiting = task_row(State.FAILED)
    assert require_task(new_decider(waiting).decide(MakeAvailable(**BY_SERVER))) == waiting


def test_abort_applies_once_and_only_to_the_named_attempt() -> None:
    decider = new_decider(task_row(State.RUNNING))
    late = Abort(**BY_SERVER, attempt_token="older", reason="timeout", jitter=0.0)
    assert require_task(decider.decide(late)).status is State.RUNNING
    aborted = require_task(decider.decide(msgspec.structs.replace(late, attempt_token="k")))
    assert (aborted.status, aborted.retry_count, aborted.waits_for) == (State.ABORTED, 1, WaitsFor.TIME)
    assert require_task(decider.decide(msgspec.structs.replace(late, attempt_token="k"))) == aborted
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): -1}


@pytest.mark.parametrize(
    ("condition", "before", "is_aborted"),
    [
        ("timed_out", task_row(State.RUNNING, timeout_at=NOW), True),
        ("timed_out", task_row(State.RUNNING, timeout_at=NOW + 1), False),
        ("not_started", task_row(State.ASSIGNED, timeout_at=NOW), True),
        ("not_started", task_row(State.RUNNING, timeout_at=NOW), False),
        ("hung", task_row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW), True),
        ("hung", task_row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW + 1), False),
        ("hung", task_row(State.RUNNING, warned_at=None, overdue_at=NOW), False),
    ],
)
def test_abort_applies_only_while_its_condition_holds(
    condition: AbortCondition, before: Task, is_aborted: bool
) -> None:
    command = Abort(**BY_SERVER, attempt_token="k", reason="r", jitter=0.0, condition=condition)
    assert require_task(new_decider(before).decide(command)).status is (State.ABORTED if is_aborted else before.status)


def test_claim_starts_the_assigned_attempts_of_its_agent_first() -> None:
    assigned_to_other = task_row(State.ASSIGNED, "other", agent_id="b")
    decider = new_decider(task_row(State.ASSIGNED), assigned_to_other, task_row(task_id="next"))
    claimed = decider.decide(claim_command(5, token="new", claim_id="c"))
    assert isinstance(claimed, ClaimedTasks)
    [assigned, following] = claimed.items
    assert (assigned.task.status, assigned.task.attempt, assigned.task.attempt_token) == (State.RUNNING, 1, "k")
    assert (following.task.id, following.task.attempt_token) == ("next", "new")
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): 1}, "the assigned task already uses a slot"
    assert claim_ids(decider, claim_command(5, claim_id="c")) == ["t", "next"]


def test_repeated_claim_id_of_finished_tasks_returns_nothing_without_waiting() -> None:
    decider = new_decider(task_row(), task_row(task_id="u"))
    assert claim_ids(decider, claim_command(claim_id="c")) == ["t"]
    decider.decide(complete_command())
    assert decider.decide(claim_command(token="k2", claim_id="c")) == ClaimedTasks((), stop_waiting=True)
    assert claim_ids(decider, claim_command(token="k2", claim_id="d")) == ["u"]


def test_repeated_claim_id_claims_again_after_a_release() -> None:
    decider = new_decider(task_row())
    assert claim_ids(decider, claim_command(claim_id="c")) == ["t"]
    decider.decide(Release(**BY_CALLER, attempt_token="k"))
    assert claim_ids(decider, claim_command(token="k2", claim_id="c")) == ["t"]


def test_task_with_a_failed_dependency_is_created_and_then_fails() -> None:
    failed = DependencyState(ZONE, "failed", State.FAILED, 1, None)
    decider = new_decider(dependency_states=[failed])
    result = decider.decide(create_command("t", depends_on=("failed",)))
    assert isinstance(result, CreatedTask)
    assert (result.task.status, result.task.reason) == (State.FAILED, "dependency_failed")
    assert result.content is not None
    assert result.content.last_error
    assert [(event.type, event.from_state, event.row.status) for event in decider.batch.tasks.events] == [
        ("task.created", None, State.PENDING),
        ("task.failed", State.PENDING, State.FAILED),
    ]


def test_abort_of_a_hung_task_raises_its_priority_by_one() -> None:
    decider = new_decider(task_row(State.RUNNING))
    hung = Abort(**BY_SERVER, attempt_token="k", reason="hung", jitter=0.0, raises_priority=True)
    after = require_task(decider.decide(hung))
    assert after.priority == 6
    assert after.rank < task_row().rank


def test_released_task_is_pending_as_if_never_claimed() -> None:
    decider = new_decider(task_row(State.RUNNING))
    released = require_task(decider.decide(Release(**BY_CALLER, attempt_token="k")))
    assert (released.status, released.attempt, released.agent_id, released.retry_count) == (State.PENDING, 0, None, 0)
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): -1}
    assert claim_ids(decider, claim_command(token="k2")) == ["t"]


def test_progress_decreases_within_an_attempt_only_on_reset() -> None:
    decider = new_decider(task_row(State.RUNNING))
    report = Progress(**BY_CALLER, attempt_token="k", percent=50, step="half", checkpoint='{"at":1}')
    assert require_task(decider.decide(report)).progress_percent == 50
    assert require_task(decider.decide(msgspec.structs.replace(report, percent=20))).progress_percent == 50
    assert (
        require_task(decider.decide(msgspec.structs.replace(report, percent=20, is_reset=True))).progress_percent == 20
    )
    assert decider.batch.content.updates[ZONE, "t"].checkpoint_data == '{"at":1}'
    assert decided_events(decider) == [("task.progressed", "t")] * 2, "a report without progress logs no event"


def test_progress_repeated_under_its_key_is_charged_once_and_changes_nothing() -> None:
    decider = new_decider(task_row(State.RUNNING))
    cost = Cost("opus", 100, 20, 10_000)
    report = Progress(
        **BY_CALLER,
        attempt_token="k",
        percent=50,
        step=None,
        checkpoint=None,
        costs=(cost,),
        idempotency_key="p1",
        request_digest="d",
    )
    assert require_task(decider.decide(report)).usd_micros == 10_000
    require_task(decider.decide(msgspec.structs.replace(report, idempotency_key="p2", percent=60)))
    again = require_task(decider.decide(report))
    assert (again.usd_micros, again.progress_percent) == (20_000, 60)
    assert (
        require_code(decider.decide(msgspec.structs.replace(report, request_digest="other")))
        == "idempotency_key_conflict"
    )
    assert require_code(decider.decide(msgspec.structs.replace(report, attempt_token="older"))) == "stale_attempt"
    assert [record.subject_id for record in decider.batch.keys.new_records] == ["t", "t"]
    assert [reported_cost for _, reported_cost in decider.batch.costs] == [cost, cost]


def test_recorded_launch_starts_an_assigned_task_and_stores_its_session() -> None:
    decider = new_decider(task_row(), agents={(ZONE, AGENT_ID): agent_info(free_slots=1)})
    assign = Assign(**BY_SERVER, agent_id=AGENT_ID, attempt_token="k")
    assert require_task(decider.decide(assign)).status is State.ASSIGNED
    assert require_code(decider.decide(assign)) == STATE_CONFLICT
    running = require_task(decider.decide(RecordLaunch(**BY_SERVER, attempt_token="k", session_key="s")))
    assert (running.status, running.session_key) == (State.RUNNING, "s")
    assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): 1}


def test_overdue_task_is_warned_once_and_progress_extends_the_hung_deadline() -> None:
    late = msgspec.structs.replace(task_row(State.RUNNING), overdue_at=NOW)
    decider = new_decider(late)
    warned = require_task(decider.decide(Warn(**BY_SERVER)))
    assert (warned.warned_at, warned.overdue_at) == (NOW, NOW + TIMEOUTS.hung_ms)
    assert require_task(decider.decide(Warn(**BY_SERVER))) == warned
    later = new_decider(warned, now=NOW + 1_000)
    progressed = require_task(
        later.decide(Progress(**BY_CALLER, attempt_token="k", percent=1, step=None, checkpoint=None))
    )
    assert progressed.overdue_at == NOW + 1_000 + TIMEOUTS.hung_ms


# -- operator commands -------------------------------------------------------------------------------------------

OPERATOR_COMMANDS: dict[str, tuple[Cancel | Retry | Pause | Resume | Archive, State, str]] = {
    "cancel": (Cancel(**BY_CALLER, reason="r"), State.ABORTED, "PENDING ASSIGNED RUNNING PAUSED FAILED ABORTED"),
    "retry": (Retry(**BY_CALLER), State.PENDING, "FAILED ABORTED"),
    "pause": (Pause(**BY_CALLER), State.PAUSED, "PENDING ASSIGNED RUNNING PAUSED"),
    "resume": (Resume(**BY_CALLER), State.PENDING, "PENDING PAUSED"),
    "archive": (Archive(**BY_CALLER), State.ARCHIVED, "COMPLETED ABORTED ARCHIVED"),
}


@pytest.mark.parametrize("verb", OPERATOR_COMMANDS)
@pytest.mark.parametrize("status", State)
def test_operator_command_in_every_state_transitions_or_is_refused(verb: str, status: State) -> None:
    command, target, allowed = OPERATOR_COMMANDS[verb]
    decider = new_decider(task_row(status))
    outcome = decider.decide(command)
    if status in allowed.split():
        assert require_task(outcome).status is target
        expected = [] if status is target and not (verb == "cancel" and status is not State.ABORTED) else [status]
        assert [event.from_state for event in decider.batch.tasks.events] == expected
    else:
        assert require_code(outcome) == STATE_CONFLICT
        assert not decider.batch.tasks.updates()


def test_cancel_and_pause_free_the_slot_and_invalidate_the_token() -> None:
    for command in (OPERATOR_COMMANDS["cancel"][0], OPERATOR_COMMANDS["pause"][0]):
        decider = new_decider(task_row(State.RUNNING))
        decider.decide(command)
        assert decider.batch.agents.held_changes == {(ZONE, AGENT_ID): -1}
        assert require_code(decider.decide(complete_command())) == "stale_attempt"


def test_canceled_task_is_final_until_a_manual_retry_resets_it() -> None:
    decider = new_decider(task_row(State.FAILED))
    canceled = require_task(decider.decide(Cancel(**BY_CALLER, reason="not needed")))
    assert (canceled.status, canceled.final, canceled.reason) == (State.ABORTED, 1, "not needed")
    assert require_task(decider.decide(MakeAvailable(**BY_SERVER))) == canceled
    retried = require_task(decider.decide(Retry(**BY_CALLER)))
    assert (retried.status, retried.waits_for) == (State.PENDING, WaitsFor.NOTHING)
    assert (retried.final, retried.retry_count) == (0, 0)
    assert claim_ids(decider, claim_command(token="k2")) == ["t"]


def test_patched_priority_moves_a_task_ahead() -> None:
    decider = new_decider(task_row(task_id="t1"), task_row(task_id="t"))
    decider.decide(Patch(**BY_CALLER, priority=9))
    assert claim_ids(decider, claim_command(2)) == ["t", "t1"]


def test_patch_is_applied_completely_or_not_at_all() -> None:
    decider = new_decider(task_row(State.RUNNING))
    after = require_task(decider.decide(Patch(**BY_CALLER, priority=9, status_change="pause")))
    assert (after.status, after.priority) == (State.PAUSED, 9)
    done = new_decider(task_row(State.COMPLETED))
    assert require_code(done.decide(Patch(**BY_CALLER, priority=9, status_change="pause"))) == STATE_CONFLICT
    assert not done.batch.tasks.updates()
    cyclic = new_decider(task_row())
    outcome = cyclic.decide(Patch(**BY_CALLER, depends_on=("t",), status_change="pause"))
    assert require_code(outcome) == "dependency_cycle"
    assert not cyclic.batch.tasks.updates()
