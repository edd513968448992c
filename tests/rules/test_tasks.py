"""The board of tasks: every command in every state, whose word counts, and what is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Conflict
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    AbortCondition,
    Archive,
    Assign,
    Cancel,
    Complete,
    Cost,
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


class Named(TypedDict):
    zone_id: str
    caller: Caller
    id: str


class Ours(TypedDict):
    zone_id: str
    id: str


NAMED: Named = {"zone_id": ZONE, "caller": CREATOR, "id": "t"}
BY_SERVER: Ours = {"zone_id": ZONE, "id": "t"}
NO_MOVE = "task_state_conflict"


def test_what_is_made_may_begin_at_once_unless_it_was_to_wait() -> None:
    here = new_decider()
    first, second = create_all(here, create_command("t1"), create_command("t2", run_at=NOW + 1))
    assert (first.status, first.waits_for) == (State.PENDING, WaitsFor.NOTHING)
    assert (second.waits_for, second.available_at) == (WaitsFor.TIME, NOW + 1)
    assert claim_ids(here, claim_command(5)) == ["t1"]


def test_the_same_key_stands_for_the_same_task_and_for_no_other_request() -> None:
    key = Key(ZONE, CREATOR.client_id, CREATE_OPERATION, "k")
    here = new_decider(
        task_row(task_id="old"), keys={key: KeyRecord(ZONE, CREATOR.client_id, CREATE_OPERATION, "k", "d", "old")}
    )
    again = here.decide(create_command("new", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == ("old", False)
    assert (
        require_code(here.decide(create_command("new", idempotency_key="k", request_digest="other")))
        == "idempotency_key_conflict"
    )
    assert not here.new_content


def test_within_a_batch_a_key_makes_one_task() -> None:
    here = new_decider()
    [first] = create_all(here, create_command("t1", idempotency_key="k"))
    again = here.decide(create_command("t2", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == (first.id, False)
    assert [each.subject_id for each in here.added_keys] == ["t1"]


def test_an_id_that_is_taken_is_refused() -> None:
    assert require_code(new_decider(task_row()).decide(create_command("t"))) == "task_exists"


def test_an_ended_zone_takes_no_task() -> None:
    assert (
        require_code(new_decider(zone_problems={ZONE: Conflict("zone_ended", "")}).decide(create_command()))
        == "zone_ended"
    )


def test_an_ended_zone_gives_nothing_out() -> None:
    here = new_decider(task_row(), zone_problems={ZONE: Conflict("zone_ended", "")})
    assert require_code(here.decide(claim_command())) == "zone_ended"
    assert require_code(here.decide(Assign(**BY_SERVER, agent_id=AGENT_ID, attempt_token="k"))) == NO_MOVE


def test_the_more_urgent_goes_first_and_among_equals_the_older() -> None:
    here = new_decider()
    create_all(
        here,
        create_command("t1"),
        create_command("t2", priority=9),
        create_command("t3", priority=9),
        create_command("t4", priority=1),
    )
    assert claim_ids(here, claim_command(4)) == ["t2", "t3", "t1", "t4"]


def test_a_claim_gets_what_its_agent_can_do_and_no_more_than_it_may_hold() -> None:
    here = new_decider(agents={(ZONE, AGENT_ID): agent_info("python", free_slots=2)})
    create_all(
        here,
        create_command("t1", required=("python", "rust")),
        *(create_command(f"t{n}", required=("python",)) for n in (2, 3, 4)),
    )
    assert claim_ids(here, claim_command(10)) == ["t2", "t3"]
    assert claim_ids(here, claim_command(10, token="again")) == []
    assert here.held_changes == {(ZONE, AGENT_ID): 2}


def test_a_claim_may_name_types_and_use_fewer_capabilities_than_its_agent_has() -> None:
    here = new_decider(agents={(ZONE, AGENT_ID): agent_info("python", "rust")})
    create_all(here, create_command("t1", required=("rust",)), create_command("t2", task_type="research"))
    assert (
        claim_ids(here, claim_command(5, capabilities=frozenset({"python"}), task_types=frozenset({"development"})))
        == []
    )
    assert claim_ids(here, claim_command(5, task_types=frozenset({"research"}))) == ["t2"]


def test_a_claim_of_an_unknown_a_terminated_or_anothers_agent_is_refused() -> None:
    assert require_code(new_decider().decide(claim_command(agent="nobody"))) == "agent_not_found"
    ended = agent_info(problem=Conflict("agent_terminated", ""))
    assert require_code(new_decider(agents={(ZONE, AGENT_ID): ended}).decide(claim_command())) == "agent_terminated"
    stranger = msgspec.structs.replace(caller("other"), agent_id="b")
    assert (
        require_code(new_decider().decide(msgspec.structs.replace(claim_command(), caller=stranger)))
        == "agent_required"
    )


def test_the_same_claim_id_gives_the_same_tasks_again_also_to_one_who_may_get_no_more() -> None:
    held = msgspec.structs.replace(task_row(State.RUNNING), claim_id="c")
    ended = agent_info(problem=Conflict("agent_draining", ""))
    here = new_decider(held, task_row(task_id="t2"), agents={(ZONE, AGENT_ID): ended})
    assert claim_ids(here, claim_command(1, claim_id="c")) == ["t"]
    assert not here.events


def test_what_a_budget_does_not_allow_waits_and_hides_nothing() -> None:
    here = new_decider(over_budget=lambda row: row.id == "t1")
    create_all(here, create_command("t1"), create_command("t2"))
    assert claim_ids(here, claim_command(2)) == ["t2"]
    assert here.task((ZONE, "t1")).status is State.PENDING


def test_creators_take_turns_where_turns_are_fair() -> None:
    here = new_decider(strategies={ZONE: Strategy.FAIR})
    many, few, late_comer = (msgspec.structs.replace(CREATOR, subject=name) for name in ("many", "few", "late"))
    create_all(
        here,
        *(create_command(f"m{n}", as_caller=many) for n in range(4)),
        create_command("f1", as_caller=few),
        create_command("f2", as_caller=few),
    )
    assert claim_ids(here, claim_command(6)) == ["f1", "m0", "f2", "m1", "m2", "m3"]
    [late] = create_all(here, create_command("l", as_caller=late_comer))
    assert late.rank == 5, "one who comes late does not wait for what was served before it came"


def test_the_shortest_goes_first_where_that_is_asked_for() -> None:
    here = new_decider(strategies={ZONE: Strategy.SJF})
    create_all(
        here,
        create_command("none"),
        create_command("long", estimated_duration_minutes=9),
        create_command("short", estimated_duration_minutes=1),
    )
    assert claim_ids(here, claim_command(3)) == ["short", "long", "none"]


# -- whose word counts -------------------------------------------------------------------------------------------

SPEAKING: dict[str, Callable[[str | None], Complete | Fail | Progress | Start]] = {
    "complete": lambda token: complete_command(token=token),
    "fail": lambda token: fail_command(token=token),
    "progress": lambda token: Progress(**NAMED, attempt_token=token, percent=1, step=None, checkpoint=None),
    "start": lambda token: Start(**NAMED, attempt_token=token),
}


@pytest.mark.parametrize("verb", SPEAKING)
@pytest.mark.parametrize("status", [State.ASSIGNED, State.RUNNING])
def test_only_the_token_of_the_present_attempt_counts(verb: str, status: State) -> None:
    for token, expected in ((None, "attempt_token_required"), ("older", "stale_attempt")):
        here = new_decider(task_row(status))
        assert require_code(here.decide(SPEAKING[verb](token))) == expected
        assert not here.originals
        assert not here.events
    assert require_task(new_decider(task_row(status)).decide(SPEAKING[verb]("k"))).id == "t"


@pytest.mark.parametrize("verb", SPEAKING)
def test_an_agents_token_says_nothing_about_anothers_task(verb: str) -> None:
    stranger = msgspec.structs.replace(caller("other"), agent_id="b")
    ask = msgspec.structs.replace(SPEAKING[verb]("k"), caller=stranger)
    assert require_code(new_decider(task_row(State.RUNNING)).decide(ask)) == "stale_attempt"


def test_a_completion_that_is_said_twice_is_answered_twice_and_told_once() -> None:
    here = new_decider(task_row(State.RUNNING))
    assert require_task(here.decide(complete_command())).status is State.COMPLETED
    assert require_task(here.decide(complete_command())).status is State.COMPLETED
    assert decided_events(here) == [("task.completed", "t")]
    assert here.held_changes == {(ZONE, AGENT_ID): -1}
    assert require_code(here.decide(fail_command())) == "stale_attempt"


def test_a_failure_that_is_said_twice_is_answered_twice_and_counted_once() -> None:
    here = new_decider(task_row(State.RUNNING))
    assert require_task(here.decide(fail_command())).retry_count == 1
    assert require_task(here.decide(fail_command())).retry_count == 1
    assert decided_events(here) == [("task.failed", "t")]


def test_a_paused_task_is_completed_by_hand_by_those_who_may() -> None:
    assert (
        require_task(new_decider(task_row(State.PAUSED)).decide(complete_command(token=None))).status is State.COMPLETED
    )
    refuse = Conflict("forbidden_role", "")
    here = new_decider(
        task_row(State.PAUSED),
        permission_problem=lambda ask, power: refuse if power == "tasks.complete_paused" else None,
    )
    assert require_code(here.decide(complete_command(token=None))) == "forbidden_role"


# -- attempts ----------------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_followed_by_another_after_a_growing_backoff_and_then_by_none() -> None:
    here = new_decider(task_row(State.RUNNING))
    first = require_task(here.decide(fail_command()))
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
    assert last.events[-1].exhausted
    assert require_task(last.decide(MakeAvailable(**BY_SERVER))) == ended


def test_a_failure_that_cannot_be_mended_is_final_and_alerts_nobody() -> None:
    here = new_decider(task_row(State.RUNNING))
    assert require_task(here.decide(fail_command(retryable=False))).final == 1
    assert not here.events[-1].exhausted


def test_nothing_is_due_before_its_moment() -> None:
    waiting = task_row(State.FAILED)
    assert require_task(new_decider(waiting).decide(MakeAvailable(**BY_SERVER))) == waiting


def test_an_attempt_is_aborted_once_and_only_if_it_is_still_that_one() -> None:
    here = new_decider(task_row(State.RUNNING))
    late = Abort(**BY_SERVER, attempt_token="older", reason="timeout", jitter=0.0)
    assert require_task(here.decide(late)).status is State.RUNNING
    aborted = require_task(here.decide(msgspec.structs.replace(late, attempt_token="k")))
    assert (aborted.status, aborted.retry_count, aborted.waits_for) == (State.ABORTED, 1, WaitsFor.TIME)
    assert require_task(here.decide(msgspec.structs.replace(late, attempt_token="k"))) == aborted
    assert here.held_changes == {(ZONE, AGENT_ID): -1}


@pytest.mark.parametrize(
    ("seen", "was", "is_so"),
    [
        ("out_of_time", task_row(State.RUNNING, timeout_at=NOW), True),
        ("out_of_time", task_row(State.RUNNING, timeout_at=NOW + 1), False),
        ("not_begun", task_row(State.ASSIGNED, timeout_at=NOW), True),
        ("not_begun", task_row(State.RUNNING, timeout_at=NOW), False),
        ("hung", task_row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW), True),
        ("hung", task_row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW + 1), False),
        ("hung", task_row(State.RUNNING, warned_at=None, overdue_at=NOW), False),
    ],
)
def test_what_has_begun_or_moved_on_since_somebody_looked_is_left_alone(
    seen: AbortCondition, was: Task, is_so: bool
) -> None:
    ask = Abort(**BY_SERVER, attempt_token="k", reason="r", jitter=0.0, condition=seen)
    assert require_task(new_decider(was).decide(ask)).status is (State.ABORTED if is_so else was.status)


def test_a_claim_begins_what_was_assigned_to_its_agent_as_the_attempt_it_was_assigned_as() -> None:
    others = task_row(State.ASSIGNED, "other", agent_id="b")
    here = new_decider(task_row(State.ASSIGNED), others, task_row(task_id="next"))
    leases = here.decide(claim_command(5, token="new", claim_id="c"))
    assert isinstance(leases, ClaimedTasks)
    [own, following] = leases.items
    assert (own.task.status, own.task.attempt, own.task.attempt_token) == (State.RUNNING, 1, "k")
    assert (following.task.id, following.task.attempt_token) == ("next", "new")
    assert here.held_changes == {(ZONE, AGENT_ID): 1}, "what was assigned had been counted"
    assert claim_ids(here, claim_command(5, claim_id="c")) == ["t", "next"]


def test_a_claim_of_which_all_is_done_is_given_nothing_new_and_does_not_wait() -> None:
    here = new_decider(task_row(), task_row(task_id="u"))
    assert claim_ids(here, claim_command(claim_id="c")) == ["t"]
    here.decide(complete_command())
    assert here.decide(claim_command(token="k2", claim_id="c")) == ClaimedTasks((), stop_waiting=True)
    assert claim_ids(here, claim_command(token="k2", claim_id="d")) == ["u"]


def test_a_claim_whose_answer_reached_nobody_is_given_something_when_it_is_repeated() -> None:
    here = new_decider(task_row())
    assert claim_ids(here, claim_command(claim_id="c")) == ["t"]
    here.decide(Release(**NAMED, attempt_token="k"))
    assert claim_ids(here, claim_command(token="k2", claim_id="c")) == ["t"]


def test_what_cannot_begin_because_another_has_failed_is_made_and_then_fails() -> None:
    gone = DependencyState(ZONE, "gone", State.FAILED, 1, None)
    here = new_decider(dependency_states=[gone])
    done = here.decide(create_command("t", depends_on=("gone",)))
    assert isinstance(done, CreatedTask)
    assert (done.task.status, done.task.reason) == (State.FAILED, "dependency_failed")
    assert done.content is not None
    assert done.content.last_error
    assert [(each.type, each.from_state, each.task.status) for each in here.events] == [
        ("task.created", None, State.PENDING),
        ("task.failed", State.PENDING, State.FAILED),
    ]


def test_a_hung_task_comes_back_one_priority_higher() -> None:
    here = new_decider(task_row(State.RUNNING))
    hung = Abort(**BY_SERVER, attempt_token="k", reason="hung", jitter=0.0, raises_priority=True)
    after = require_task(here.decide(hung))
    assert after.priority == 6
    assert after.rank < task_row().rank


def test_a_task_that_is_given_back_is_as_if_it_had_never_been_given() -> None:
    here = new_decider(task_row(State.RUNNING))
    back = require_task(here.decide(Release(**NAMED, attempt_token="k")))
    assert (back.status, back.attempt, back.agent_id, back.retry_count) == (State.PENDING, 0, None, 0)
    assert here.held_changes == {(ZONE, AGENT_ID): -1}
    assert claim_ids(here, claim_command(token="k2")) == ["t"]


def test_progress_never_falls_within_an_attempt_unless_it_is_said_so() -> None:
    here = new_decider(task_row(State.RUNNING))
    say = Progress(**NAMED, attempt_token="k", percent=50, step="half", checkpoint='{"at":1}')
    assert require_task(here.decide(say)).progress_percent == 50
    assert require_task(here.decide(msgspec.structs.replace(say, percent=20))).progress_percent == 50
    assert require_task(here.decide(msgspec.structs.replace(say, percent=20, is_reset=True))).progress_percent == 20
    assert here.content_updates[ZONE, "t"].checkpoint_data == '{"at":1}'
    assert decided_events(here) == [("task.progressed", "t")] * 2, "what moved nothing is not told"


def test_progress_that_is_repeated_under_its_key_is_charged_once_and_moves_nothing() -> None:
    here = new_decider(task_row(State.RUNNING))
    cost = Cost("opus", 100, 20, 10_000)
    say = Progress(
        **NAMED,
        attempt_token="k",
        percent=50,
        step=None,
        checkpoint=None,
        costs=(cost,),
        idempotency_key="p1",
        request_digest="d",
    )
    assert require_task(here.decide(say)).usd_micros == 10_000
    require_task(here.decide(msgspec.structs.replace(say, idempotency_key="p2", percent=60)))
    again = require_task(here.decide(say))
    assert (again.usd_micros, again.progress_percent) == (20_000, 60)
    assert require_code(here.decide(msgspec.structs.replace(say, request_digest="other"))) == "idempotency_key_conflict"
    assert require_code(here.decide(msgspec.structs.replace(say, attempt_token="older"))) == "stale_attempt"
    assert [binding.subject_id for binding in here.added_keys] == ["t", "t"]
    assert [spent for _, spent in here.costs] == [cost, cost]


def test_an_assigned_task_begins_when_it_was_launched_and_keeps_its_session() -> None:
    here = new_decider(task_row(), agents={(ZONE, AGENT_ID): agent_info(free_slots=1)})
    assign = Assign(**BY_SERVER, agent_id=AGENT_ID, attempt_token="k")
    assert require_task(here.decide(assign)).status is State.ASSIGNED
    assert require_code(here.decide(assign)) == NO_MOVE
    running = require_task(here.decide(RecordLaunch(**BY_SERVER, attempt_token="k", session_key="s")))
    assert (running.status, running.session_key) == (State.RUNNING, "s")
    assert here.held_changes == {(ZONE, AGENT_ID): 1}


def test_an_overdue_task_is_warned_of_once_and_watched_while_it_moves() -> None:
    late = msgspec.structs.replace(task_row(State.RUNNING), overdue_at=NOW)
    here = new_decider(late)
    warned = require_task(here.decide(Warn(**BY_SERVER)))
    assert (warned.warned_at, warned.overdue_at) == (NOW, NOW + TIMEOUTS.hung_ms)
    assert require_task(here.decide(Warn(**BY_SERVER))) == warned
    later = new_decider(warned, now=NOW + 1_000)
    moved = require_task(later.decide(Progress(**NAMED, attempt_token="k", percent=1, step=None, checkpoint=None)))
    assert moved.overdue_at == NOW + 1_000 + TIMEOUTS.hung_ms


# -- by hand -----------------------------------------------------------------------------------------------------

BY_HAND: dict[str, tuple[Cancel | Retry | Pause | Resume | Archive, State, str]] = {
    "cancel": (Cancel(**NAMED, reason="r"), State.ABORTED, "PENDING ASSIGNED RUNNING PAUSED FAILED ABORTED"),
    "retry": (Retry(**NAMED), State.PENDING, "FAILED ABORTED"),
    "pause": (Pause(**NAMED), State.PAUSED, "PENDING ASSIGNED RUNNING PAUSED"),
    "resume": (Resume(**NAMED), State.PENDING, "PENDING PAUSED"),
    "archive": (Archive(**NAMED), State.ARCHIVED, "COMPLETED ABORTED ARCHIVED"),
}


@pytest.mark.parametrize("verb", BY_HAND)
@pytest.mark.parametrize("status", State)
def test_every_verb_in_every_state_moves_or_is_refused(verb: str, status: State) -> None:
    ask, target, allowed = BY_HAND[verb]
    here = new_decider(task_row(status))
    outcome = here.decide(ask)
    if status in allowed.split():
        assert require_task(outcome).status is target
        expected = [] if status is target and not (verb == "cancel" and status is not State.ABORTED) else [status]
        assert [each.from_state for each in here.events] == expected
    else:
        assert require_code(outcome) == NO_MOVE
        assert not here.originals


def test_a_task_that_is_taken_from_its_agent_leaves_it_a_free_place_and_a_stale_token() -> None:
    for ask in (BY_HAND["cancel"][0], BY_HAND["pause"][0]):
        here = new_decider(task_row(State.RUNNING))
        here.decide(ask)
        assert here.held_changes == {(ZONE, AGENT_ID): -1}
        assert require_code(here.decide(complete_command())) == "stale_attempt"


def test_a_canceled_task_is_over_for_good_and_a_retry_by_hand_begins_it_anew() -> None:
    here = new_decider(task_row(State.FAILED))
    canceled = require_task(here.decide(Cancel(**NAMED, reason="no more")))
    assert (canceled.status, canceled.final, canceled.reason) == (State.ABORTED, 1, "no more")
    assert require_task(here.decide(MakeAvailable(**BY_SERVER))) == canceled
    anew = require_task(here.decide(Retry(**NAMED)))
    assert (anew.status, anew.final, anew.retry_count, anew.waits_for) == (State.PENDING, 0, 0, WaitsFor.NOTHING)
    assert claim_ids(here, claim_command(token="k2")) == ["t"]


def test_a_higher_priority_by_hand_moves_a_task_ahead() -> None:
    here = new_decider(task_row(task_id="t1"), task_row(task_id="t"))
    here.decide(Patch(**NAMED, priority=9))
    assert claim_ids(here, claim_command(2)) == ["t", "t1"]


def test_a_change_is_made_whole_or_not_at_all() -> None:
    here = new_decider(task_row(State.RUNNING))
    after = require_task(here.decide(Patch(**NAMED, priority=9, status_change="pause")))
    assert (after.status, after.priority) == (State.PAUSED, 9)
    done = new_decider(task_row(State.COMPLETED))
    assert require_code(done.decide(Patch(**NAMED, priority=9, status_change="pause"))) == NO_MOVE
    assert not done.originals
    cyclic = new_decider(task_row())
    assert require_code(cyclic.decide(Patch(**NAMED, depends_on=("t",), status_change="pause"))) == "dependency_cycle"
    assert not cyclic.originals
