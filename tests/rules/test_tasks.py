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
from tests.support.asking import NOW, ZONE, caller
from tests.support.tasking import (
    AGENT,
    CREATOR,
    WINDOWS,
    board,
    claim,
    code,
    complete,
    create,
    fail,
    given,
    made,
    row,
    task,
    told,
    worker,
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
    here = board()
    first, second = made(here, create("t1"), create("t2", run_at=NOW + 1))
    assert (first.status, first.waits_for) == (State.PENDING, WaitsFor.NOTHING)
    assert (second.waits_for, second.available_at) == (WaitsFor.TIME, NOW + 1)
    assert given(here, claim(5)) == ["t1"]


def test_the_same_key_stands_for_the_same_task_and_for_no_other_request() -> None:
    key = Key(ZONE, CREATOR.client_id, CREATE_OPERATION, "k")
    here = board(row(task_id="old"), keys={key: KeyRecord(ZONE, CREATOR.client_id, CREATE_OPERATION, "k", "d", "old")})
    again = here.decide(create("new", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == ("old", False)
    assert code(here.decide(create("new", idempotency_key="k", request_digest="other"))) == "idempotency_key_conflict"
    assert not here.new_content


def test_within_a_batch_a_key_makes_one_task() -> None:
    here = board()
    [first] = made(here, create("t1", idempotency_key="k"))
    again = here.decide(create("t2", idempotency_key="k"))
    assert isinstance(again, CreatedTask)
    assert (again.task.id, again.created) == (first.id, False)
    assert [each.subject_id for each in here.added_keys] == ["t1"]


def test_an_id_that_is_taken_is_refused() -> None:
    assert code(board(row()).decide(create("t"))) == "task_exists"


def test_an_ended_zone_takes_no_task() -> None:
    assert code(board(zone_problems={ZONE: Conflict("zone_ended", "")}).decide(create())) == "zone_ended"


def test_an_ended_zone_gives_nothing_out() -> None:
    here = board(row(), zone_problems={ZONE: Conflict("zone_ended", "")})
    assert code(here.decide(claim())) == "zone_ended"
    assert code(here.decide(Assign(**BY_SERVER, agent_id=AGENT, attempt_token="k"))) == NO_MOVE


def test_the_more_urgent_goes_first_and_among_equals_the_older() -> None:
    here = board()
    made(here, create("t1"), create("t2", priority=9), create("t3", priority=9), create("t4", priority=1))
    assert given(here, claim(4)) == ["t2", "t3", "t1", "t4"]


def test_a_claim_gets_what_its_agent_can_do_and_no_more_than_it_may_hold() -> None:
    here = board(agents={(ZONE, AGENT): worker("python", free=2)})
    made(here, create("t1", required=("python", "rust")), *(create(f"t{n}", required=("python",)) for n in (2, 3, 4)))
    assert given(here, claim(10)) == ["t2", "t3"]
    assert given(here, claim(10, token="again")) == []
    assert here.held_changes == {(ZONE, AGENT): 2}


def test_a_claim_may_name_types_and_use_fewer_capabilities_than_its_agent_has() -> None:
    here = board(agents={(ZONE, AGENT): worker("python", "rust")})
    made(here, create("t1", required=("rust",)), create("t2", task_type="research"))
    assert given(here, claim(5, capabilities=frozenset({"python"}), task_types=frozenset({"development"}))) == []
    assert given(here, claim(5, task_types=frozenset({"research"}))) == ["t2"]


def test_a_claim_of_an_unknown_a_terminated_or_anothers_agent_is_refused() -> None:
    assert code(board().decide(claim(agent="nobody"))) == "agent_not_found"
    ended = worker(problem=Conflict("agent_terminated", ""))
    assert code(board(agents={(ZONE, AGENT): ended}).decide(claim())) == "agent_terminated"
    stranger = msgspec.structs.replace(caller("other"), agent_id="b")
    assert code(board().decide(msgspec.structs.replace(claim(), caller=stranger))) == "agent_required"


def test_the_same_claim_id_gives_the_same_tasks_again_also_to_one_who_may_get_no_more() -> None:
    held = msgspec.structs.replace(row(State.RUNNING), claim_id="c")
    ended = worker(problem=Conflict("agent_draining", ""))
    here = board(held, row(task_id="t2"), agents={(ZONE, AGENT): ended})
    assert given(here, claim(1, claim_id="c")) == ["t"]
    assert not here.events


def test_what_a_budget_does_not_allow_waits_and_hides_nothing() -> None:
    here = board(over_budget=lambda row: row.id == "t1")
    made(here, create("t1"), create("t2"))
    assert given(here, claim(2)) == ["t2"]
    assert here.task((ZONE, "t1")).status is State.PENDING


def test_creators_take_turns_where_turns_are_fair() -> None:
    here = board(strategies={ZONE: Strategy.FAIR})
    many, few, late_comer = (msgspec.structs.replace(CREATOR, subject=name) for name in ("many", "few", "late"))
    made(here, *(create(f"m{n}", by=many) for n in range(4)), create("f1", by=few), create("f2", by=few))
    assert given(here, claim(6)) == ["f1", "m0", "f2", "m1", "m2", "m3"]
    [late] = made(here, create("l", by=late_comer))
    assert late.rank == 5, "one who comes late does not wait for what was served before it came"


def test_the_shortest_goes_first_where_that_is_asked_for() -> None:
    here = board(strategies={ZONE: Strategy.SJF})
    made(
        here,
        create("none"),
        create("long", estimated_duration_minutes=9),
        create("short", estimated_duration_minutes=1),
    )
    assert given(here, claim(3)) == ["short", "long", "none"]


# -- whose word counts -------------------------------------------------------------------------------------------

SPEAKING: dict[str, Callable[[str | None], Complete | Fail | Progress | Start]] = {
    "complete": lambda token: complete(token=token),
    "fail": lambda token: fail(token=token),
    "progress": lambda token: Progress(**NAMED, attempt_token=token, percent=1, step=None, checkpoint=None),
    "start": lambda token: Start(**NAMED, attempt_token=token),
}


@pytest.mark.parametrize("verb", SPEAKING)
@pytest.mark.parametrize("status", [State.ASSIGNED, State.RUNNING])
def test_only_the_token_of_the_present_attempt_counts(verb: str, status: State) -> None:
    for token, expected in ((None, "attempt_token_required"), ("older", "stale_attempt")):
        here = board(row(status))
        assert code(here.decide(SPEAKING[verb](token))) == expected
        assert not here.originals
        assert not here.events
    assert task(board(row(status)).decide(SPEAKING[verb]("k"))).id == "t"


@pytest.mark.parametrize("verb", SPEAKING)
def test_an_agents_token_says_nothing_about_anothers_task(verb: str) -> None:
    stranger = msgspec.structs.replace(caller("other"), agent_id="b")
    ask = msgspec.structs.replace(SPEAKING[verb]("k"), caller=stranger)
    assert code(board(row(State.RUNNING)).decide(ask)) == "stale_attempt"


def test_a_completion_that_is_said_twice_is_answered_twice_and_told_once() -> None:
    here = board(row(State.RUNNING))
    assert task(here.decide(complete())).status is State.COMPLETED
    assert task(here.decide(complete())).status is State.COMPLETED
    assert told(here) == [("task.completed", "t")]
    assert here.held_changes == {(ZONE, AGENT): -1}
    assert code(here.decide(fail())) == "stale_attempt"


def test_a_failure_that_is_said_twice_is_answered_twice_and_counted_once() -> None:
    here = board(row(State.RUNNING))
    assert task(here.decide(fail())).retry_count == 1
    assert task(here.decide(fail())).retry_count == 1
    assert told(here) == [("task.failed", "t")]


def test_a_paused_task_is_completed_by_hand_by_those_who_may() -> None:
    assert task(board(row(State.PAUSED)).decide(complete(token=None))).status is State.COMPLETED
    refuse = Conflict("forbidden_role", "")
    here = board(
        row(State.PAUSED), permission_problem=lambda ask, power: refuse if power == "tasks.complete_paused" else None
    )
    assert code(here.decide(complete(token=None))) == "forbidden_role"


# -- attempts ----------------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_followed_by_another_after_a_growing_backoff_and_then_by_none() -> None:
    here = board(row(State.RUNNING))
    first = task(here.decide(fail()))
    assert (first.status, first.waits_for, first.available_at) == (State.FAILED, WaitsFor.TIME, NOW + 10_000)
    later = board(first, now=first.available_at)
    assert task(later.decide(MakeAvailable(**BY_SERVER))).status is State.PENDING
    assert given(later, claim(token="k2")) == ["t"]
    second = task(later.decide(fail(token="k2")))
    assert second.available_at == first.available_at + 20_000
    last = board(second, now=second.available_at)
    last.decide(MakeAvailable(**BY_SERVER))
    given(last, claim(token="k3"))
    ended = task(last.decide(fail(token="k3")))
    assert (ended.status, ended.final, ended.dependents_pending) == (State.FAILED, 1, 1)
    assert last.events[-1].exhausted
    assert task(last.decide(MakeAvailable(**BY_SERVER))) == ended


def test_a_failure_that_cannot_be_mended_is_final_and_alerts_nobody() -> None:
    here = board(row(State.RUNNING))
    assert task(here.decide(fail(retryable=False))).final == 1
    assert not here.events[-1].exhausted


def test_nothing_is_due_before_its_moment() -> None:
    waiting = row(State.FAILED)
    assert task(board(waiting).decide(MakeAvailable(**BY_SERVER))) == waiting


def test_an_attempt_is_aborted_once_and_only_if_it_is_still_that_one() -> None:
    here = board(row(State.RUNNING))
    late = Abort(**BY_SERVER, attempt_token="older", reason="timeout", jitter=0.0)
    assert task(here.decide(late)).status is State.RUNNING
    aborted = task(here.decide(msgspec.structs.replace(late, attempt_token="k")))
    assert (aborted.status, aborted.retry_count, aborted.waits_for) == (State.ABORTED, 1, WaitsFor.TIME)
    assert task(here.decide(msgspec.structs.replace(late, attempt_token="k"))) == aborted
    assert here.held_changes == {(ZONE, AGENT): -1}


@pytest.mark.parametrize(
    ("seen", "was", "is_so"),
    [
        ("out_of_time", row(State.RUNNING, timeout_at=NOW), True),
        ("out_of_time", row(State.RUNNING, timeout_at=NOW + 1), False),
        ("not_begun", row(State.ASSIGNED, timeout_at=NOW), True),
        ("not_begun", row(State.RUNNING, timeout_at=NOW), False),
        ("hung", row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW), True),
        ("hung", row(State.RUNNING, warned_at=NOW - 9, overdue_at=NOW + 1), False),
        ("hung", row(State.RUNNING, warned_at=None, overdue_at=NOW), False),
    ],
)
def test_what_has_begun_or_moved_on_since_somebody_looked_is_left_alone(
    seen: AbortCondition, was: Task, is_so: bool
) -> None:
    ask = Abort(**BY_SERVER, attempt_token="k", reason="r", jitter=0.0, condition=seen)
    assert task(board(was).decide(ask)).status is (State.ABORTED if is_so else was.status)


def test_a_claim_begins_what_was_assigned_to_its_agent_as_the_attempt_it_was_assigned_as() -> None:
    others = row(State.ASSIGNED, "other", agent_id="b")
    here = board(row(State.ASSIGNED), others, row(task_id="next"))
    leases = here.decide(claim(5, token="new", claim_id="c"))
    assert isinstance(leases, ClaimedTasks)
    [own, following] = leases.items
    assert (own.task.status, own.task.attempt, own.task.attempt_token) == (State.RUNNING, 1, "k")
    assert (following.task.id, following.task.attempt_token) == ("next", "new")
    assert here.held_changes == {(ZONE, AGENT): 1}, "what was assigned had been counted"
    assert given(here, claim(5, claim_id="c")) == ["t", "next"]


def test_a_claim_of_which_all_is_done_is_given_nothing_new_and_does_not_wait() -> None:
    here = board(row(), row(task_id="u"))
    assert given(here, claim(claim_id="c")) == ["t"]
    here.decide(complete())
    assert here.decide(claim(token="k2", claim_id="c")) == ClaimedTasks((), stop_waiting=True)
    assert given(here, claim(token="k2", claim_id="d")) == ["u"]


def test_a_claim_whose_answer_reached_nobody_is_given_something_when_it_is_repeated() -> None:
    here = board(row())
    assert given(here, claim(claim_id="c")) == ["t"]
    here.decide(Release(**NAMED, attempt_token="k"))
    assert given(here, claim(token="k2", claim_id="c")) == ["t"]


def test_what_cannot_begin_because_another_has_failed_is_made_and_then_fails() -> None:
    gone = DependencyState(ZONE, "gone", State.FAILED, 1, None)
    here = board(dependency_states=[gone])
    done = here.decide(create("t", depends_on=("gone",)))
    assert isinstance(done, CreatedTask)
    assert (done.task.status, done.task.reason) == (State.FAILED, "dependency_failed")
    assert done.content is not None
    assert done.content.last_error
    assert [(each.type, each.from_state, each.task.status) for each in here.events] == [
        ("task.created", None, State.PENDING),
        ("task.failed", State.PENDING, State.FAILED),
    ]


def test_a_hung_task_comes_back_one_priority_higher() -> None:
    here = board(row(State.RUNNING))
    hung = Abort(**BY_SERVER, attempt_token="k", reason="hung", jitter=0.0, raises_priority=True)
    after = task(here.decide(hung))
    assert after.priority == 6
    assert after.rank < row().rank


def test_a_task_that_is_given_back_is_as_if_it_had_never_been_given() -> None:
    here = board(row(State.RUNNING))
    back = task(here.decide(Release(**NAMED, attempt_token="k")))
    assert (back.status, back.attempt, back.agent_id, back.retry_count) == (State.PENDING, 0, None, 0)
    assert here.held_changes == {(ZONE, AGENT): -1}
    assert given(here, claim(token="k2")) == ["t"]


def test_progress_never_falls_within_an_attempt_unless_it_is_said_so() -> None:
    here = board(row(State.RUNNING))
    say = Progress(**NAMED, attempt_token="k", percent=50, step="half", checkpoint='{"at":1}')
    assert task(here.decide(say)).progress_percent == 50
    assert task(here.decide(msgspec.structs.replace(say, percent=20))).progress_percent == 50
    assert task(here.decide(msgspec.structs.replace(say, percent=20, is_reset=True))).progress_percent == 20
    assert here.content_updates[ZONE, "t"].checkpoint_data == '{"at":1}'
    assert told(here) == [("task.progressed", "t")] * 2, "what moved nothing is not told"


def test_progress_that_is_repeated_under_its_key_is_charged_once_and_moves_nothing() -> None:
    here = board(row(State.RUNNING))
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
    assert task(here.decide(say)).usd_micros == 10_000
    task(here.decide(msgspec.structs.replace(say, idempotency_key="p2", percent=60)))
    again = task(here.decide(say))
    assert (again.usd_micros, again.progress_percent) == (20_000, 60)
    assert code(here.decide(msgspec.structs.replace(say, request_digest="other"))) == "idempotency_key_conflict"
    assert code(here.decide(msgspec.structs.replace(say, attempt_token="older"))) == "stale_attempt"
    assert [binding.subject_id for binding in here.added_keys] == ["t", "t"]
    assert [spent for _, spent in here.costs] == [cost, cost]


def test_an_assigned_task_begins_when_it_was_launched_and_keeps_its_session() -> None:
    here = board(row(), agents={(ZONE, AGENT): worker(free=1)})
    assign = Assign(**BY_SERVER, agent_id=AGENT, attempt_token="k")
    assert task(here.decide(assign)).status is State.ASSIGNED
    assert code(here.decide(assign)) == NO_MOVE
    running = task(here.decide(RecordLaunch(**BY_SERVER, attempt_token="k", session_key="s")))
    assert (running.status, running.session_key) == (State.RUNNING, "s")
    assert here.held_changes == {(ZONE, AGENT): 1}


def test_an_overdue_task_is_warned_of_once_and_watched_while_it_moves() -> None:
    late = msgspec.structs.replace(row(State.RUNNING), overdue_at=NOW)
    here = board(late)
    warned = task(here.decide(Warn(**BY_SERVER)))
    assert (warned.warned_at, warned.overdue_at) == (NOW, NOW + WINDOWS.hung_ms)
    assert task(here.decide(Warn(**BY_SERVER))) == warned
    later = board(warned, now=NOW + 1_000)
    moved = task(later.decide(Progress(**NAMED, attempt_token="k", percent=1, step=None, checkpoint=None)))
    assert moved.overdue_at == NOW + 1_000 + WINDOWS.hung_ms


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
    here = board(row(status))
    outcome = here.decide(ask)
    if status in allowed.split():
        assert task(outcome).status is target
        expected = [] if status is target and not (verb == "cancel" and status is not State.ABORTED) else [status]
        assert [each.from_state for each in here.events] == expected
    else:
        assert code(outcome) == NO_MOVE
        assert not here.originals


def test_a_task_that_is_taken_from_its_agent_leaves_it_a_free_place_and_a_stale_token() -> None:
    for ask in (BY_HAND["cancel"][0], BY_HAND["pause"][0]):
        here = board(row(State.RUNNING))
        here.decide(ask)
        assert here.held_changes == {(ZONE, AGENT): -1}
        assert code(here.decide(complete())) == "stale_attempt"


def test_a_canceled_task_is_over_for_good_and_a_retry_by_hand_begins_it_anew() -> None:
    here = board(row(State.FAILED))
    canceled = task(here.decide(Cancel(**NAMED, reason="no more")))
    assert (canceled.status, canceled.final, canceled.reason) == (State.ABORTED, 1, "no more")
    assert task(here.decide(MakeAvailable(**BY_SERVER))) == canceled
    anew = task(here.decide(Retry(**NAMED)))
    assert (anew.status, anew.final, anew.retry_count, anew.waits_for) == (State.PENDING, 0, 0, WaitsFor.NOTHING)
    assert given(here, claim(token="k2")) == ["t"]


def test_a_higher_priority_by_hand_moves_a_task_ahead() -> None:
    here = board(row(task_id="t1"), row(task_id="t"))
    here.decide(Patch(**NAMED, priority=9))
    assert given(here, claim(2)) == ["t", "t1"]


def test_a_change_is_made_whole_or_not_at_all() -> None:
    here = board(row(State.RUNNING))
    after = task(here.decide(Patch(**NAMED, priority=9, status_change="pause")))
    assert (after.status, after.priority) == (State.PAUSED, 9)
    done = board(row(State.COMPLETED))
    assert code(done.decide(Patch(**NAMED, priority=9, status_change="pause"))) == NO_MOVE
    assert not done.originals
    cyclic = board(row())
    assert code(cyclic.decide(Patch(**NAMED, depends_on=("t",), status_change="pause"))) == "dependency_cycle"
    assert not cyclic.originals
