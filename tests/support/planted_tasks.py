"""Breaches of what is promised of tasks, each planted into a true history by the smallest change that makes it one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.maintenance.history_checker.task_model import DependencyRow
from tests.support.histories_tasks import Labour, TaskPlant

replace = msgspec.structs.replace
MINUTES = 10 * 60_000


# -- story


def told_twice(w: Labour) -> None:
    index = w.find("task.completed", "well")
    w.insert(index + 1, w.events[index])


def never_begun(w: Labour) -> None:
    w.remove(w.find("task.created", "held"))
    w.calls = [call for call in w.calls if call.response.id != "held" or call.op != "task.create"]


def no_arrow(w: Labour) -> None:
    """Out of PAUSED nobody is given anything."""
    index = w.find("task.resumed", "held")
    w.change(index, to_state="COMPLETED")
    w.change(index + 1, from_state="COMPLETED")


def no_step(w: Labour) -> None:
    w.step("dropped", "wished")


def progress_told_twice(w: Labour) -> None:
    index = w.find("task.progressed", "long")
    w.insert(index + 1, w.events[index])


def back_by_itself(w: Labour) -> None:
    w.change(w.find("task.requeued", "hopeless", 1), reason="backoff")


def failed_without_holder(w: Labour) -> None:
    w.make("idle")
    w.step("idle", "failed", "FAILED", reason="failed", final=True)


def unreadable(w: Labour) -> None:
    """Nothing else hangs on it."""
    w.step("dropped", "archived", "ARCHIVED")
    w.change(len(w.events) - 1, attempt="second")
    w.tasks["dropped"] = replace(w.tasks["dropped"], status="ABORTED")


STORY: Sequence[TaskPlant] = (
    told_twice,
    never_begun,
    no_arrow,
    no_step,
    progress_told_twice,
    back_by_itself,
    failed_without_holder,
    unreadable,
)


# -- attempts


def begun_while_another_ran(w: Labour) -> None:
    w.make("double")
    w.give("double", "a1")
    lease = w.give("double", "a2")
    w.change(len(w.events) - 1, from_state="PENDING")
    w.done(lease, "a2")


def attempts_skipped(w: Labour) -> None:
    w.make("skipped")
    w.tasks["skipped"] = replace(w.tasks["skipped"], attempt=4)
    w.done(w.give("skipped", "a1"), "a1")


def told_of_another_attempt(w: Labour) -> None:
    w.change(w.find("task.progressed", "long", 2), attempt=1)
    # That attempt 2 came to it nobody wrote down.
    w.calls = [call for call in w.calls if not (call.op == "task.progress" and call.client == "a2")]


def one_token_to_two(w: Labour) -> None:
    call = next(call for call in w.calls if call.op == "task.claim")
    assert call.task_data is not None
    asked = replace(call.task_data.request, claim_id=None, agent_id=None)
    w.calls.append(replace(call, client="a2", seq=9_000, task_data=replace(call.task_data, request=asked)))


def one_attempt_under_two_tokens(w: Labour) -> None:
    call = next(call for call in w.calls if call.op == "task.claim")
    assert call.task_data is not None
    assert call.task_data.optional_response is not None
    leases = [replace(lease, attempt_token="another") for lease in call.task_data.leases]
    work = replace(call.task_data, optional_response=replace(call.task_data.optional_response, tasks=leases))
    w.calls.append(replace(call, client="a2", seq=9_000, task_data=work))


def handed_to_another_agent(w: Labour) -> None:
    index = next(i for i, call in enumerate(w.calls) if call.op == "task.claim")
    work = w.calls[index].task_data
    assert work is not None
    w.calls[index] = replace(w.calls[index], task_data=replace(work, request=replace(work.request, agent_id="a2")))


HOLDERS: Sequence[TaskPlant] = (
    begun_while_another_ran,
    attempts_skipped,
    told_of_another_attempt,
    one_token_to_two,
    one_attempt_under_two_tokens,
    handed_to_another_agent,
)


def lost_agent_believed(w: Labour) -> None:
    """The one that was refused was told that it was done."""
    index = next(i for i, call in enumerate(w.calls) if call.response.error == "stale_attempt")
    call = w.calls[index]
    w.calls[index] = replace(call, status=200, optional_response=replace(call.response, error=None, status="COMPLETED"))


def failure_of_a_lost_attempt(w: Labour) -> None:
    index = next(i for i, call in enumerate(w.calls) if call.response.error == "stale_attempt")
    call = w.calls[index]
    w.calls[index] = replace(call, op="task.fail", status=200, optional_response=replace(call.response, error=None))


def given_back_after_its_end(w: Labour) -> None:
    w.make("ended")
    lease = w.give("ended", "a1")
    w.done(lease, "a1")
    w.say("task.release", lease, "a1", 200, "COMPLETED")


STALE: Sequence[TaskPlant] = (lost_agent_believed, failure_of_a_lost_attempt, given_back_after_its_end)


# -- what was acknowledged, refused, made


def a_task_lost(w: Labour) -> None:
    w.word("task.create", 201, {"id": "gone"}, {"id": "gone", "status": "PENDING"})


def a_completion_lost(w: Labour) -> None:
    w.make("open")
    w.say("task.complete", w.give("open", "a1"), "a1", 200, "COMPLETED")


def a_cancellation_lost(w: Labour) -> None:
    w.word("task.cancel", 200, {"id": "held"}, {"id": "held", "status": "ABORTED"})


def a_step_lost(w: Labour) -> None:
    w.remove(w.find("task.progressed", "long"))


LOST: Sequence[TaskPlant] = (a_task_lost, a_completion_lost, a_cancellation_lost, a_step_lost)


def a_refused_task_made(w: Labour) -> None:
    w.make("unwanted")
    w.calls[-1] = replace(
        w.calls[-1], status=400, optional_response=replace(w.calls[-1].response, error="invalid_body")
    )


def made_twice(w: Labour) -> None:
    w.word("task.create", 201, {"id": "back", "idempotency_key": "key-back"}, {"id": "back"})


def two_tasks_of_one_key(w: Labour) -> None:
    w.make("twin")
    w.word("task.create", 200, {"id": "twin", "idempotency_key": "key-back"}, {"id": "twin"})


def before_its_time(w: Labour) -> None:
    """Asked for when a later one had been answered."""
    index = next(i for i, call in enumerate(w.calls) if call.response.id == "well" and call.has_created)
    w.calls[index] = replace(w.calls[index], started=w.now + 100.0, ended=w.now + 110.0)


def begun_by_a_lost_agent(w: Labour) -> None:
    w.remove(w.find("agent.revived", "a1"))


# -- rows


def a_row_gone(w: Labour) -> None:
    del w.tasks["dropped"]


def a_row_without_an_event(w: Labour) -> None:
    w.tasks["new"] = replace(w.tasks["well"], id="new")


def a_row_in_another_state(w: Labour) -> None:
    w.tasks["left"] = replace(w.tasks["left"], status="PAUSED")


def a_row_in_another_attempt(w: Labour) -> None:
    w.tasks["long"] = replace(w.tasks["long"], attempt=1)


AGREEMENT: Sequence[TaskPlant] = (a_row_gone, a_row_without_an_event, a_row_in_another_state, a_row_in_another_attempt)


def end_not_heard_of(w: Labour) -> None:
    w.tasks["dropped"] = replace(w.tasks["dropped"], spreads=1)


def waits_for_what_is_over(w: Labour) -> None:
    w.make("stuck", "well")
    w.tasks["stuck"] = replace(w.tasks["stuck"], waits=2)


def waits_for_a_moment_long_past(w: Labour) -> None:
    w.make("late")
    w.tasks["late"] = replace(w.tasks["late"], waits=1, available_at=w.now)
    w.now += MINUTES


def held_by_one_that_is_lost(w: Labour) -> None:
    w.make("orphan")
    w.give("orphan", "a1")
    w.tasks["orphan"] = replace(w.tasks["orphan"], agent_status="ERROR")


def held_by_one_not_heard_of(w: Labour) -> None:
    w.make("orphan")
    w.give("orphan", "a1")
    w.tasks["orphan"] = replace(w.tasks["orphan"], agent_silent_from=w.now)
    w.now += MINUTES


def held_beyond_its_time(w: Labour) -> None:
    w.make("slow")
    w.give("slow", "a1")
    w.tasks["slow"] = replace(w.tasks["slow"], timeout_at=w.now)
    w.now += MINUTES


REST: Sequence[TaskPlant] = (
    end_not_heard_of,
    waits_for_what_is_over,
    waits_for_a_moment_long_past,
    held_by_one_that_is_lost,
    held_by_one_not_heard_of,
    held_beyond_its_time,
)


# -- of tasks alone


def began_before_what_it_waits_for(w: Labour) -> None:
    w.make("first")
    w.make("second", "first")
    w.done(w.give("second", "a1"), "a1")
    w.done(w.give("first", "a1"), "a1")


def ran_with_what_had_failed(w: Labour) -> None:
    w.tasks["without"] = replace(w.tasks["without"], on_dependency_failure="fail")


def began_before_there_was_what_it_waits_for(w: Labour) -> None:
    w.make("early")
    w.done(w.give("early", "a1"), "a1")
    w.make("new")
    w.done(w.give("new", "a1"), "a1")
    w.dependencies.append(DependencyRow("z", "early", "new"))


def depended_on_more(w: Labour) -> None:
    w.dependencies.append(DependencyRow("z", "left", "tail"))


def began_untold(w: Labour) -> None:
    w.remove(w.find("task.unblocked", "left"))


DEPENDENCIES: Sequence[TaskPlant] = (
    began_before_what_it_waits_for,
    ran_with_what_had_failed,
    began_before_there_was_what_it_waits_for,
    depended_on_more,
    began_untold,
)


def given(w: Labour, content: bytes) -> None:
    """The second attempt at the long one was given this."""
    for i, call in enumerate(w.calls):
        if call.op == "task.claim" and call.task_data and call.task_data.leases[0].id == "long" and call.client == "a2":
            assert call.task_data.optional_response is not None
            lease = replace(call.task_data.leases[0], checkpoint_data=msgspec.Raw(content))
            w.calls[i] = replace(
                call,
                task_data=replace(
                    call.task_data, optional_response=replace(call.task_data.optional_response, tasks=[lease])
                ),
            )


def begun_from_nothing(w: Labour) -> None:
    given(w, b"{}")


def begun_from_an_older_one(w: Labour) -> None:
    given(w, b'{"at":1}')


def begun_from_what_was_refused(w: Labour) -> None:
    given(w, b'{"at":4}')


RESUMED: Sequence[TaskPlant] = (begun_from_nothing, begun_from_an_older_one, begun_from_what_was_refused)

PLANTED_TASKS: dict[str, Sequence[TaskPlant]] = {
    "story": STORY,
    "one-key": (made_twice, two_tasks_of_one_key),
    "one-holder": HOLDERS,
    "stale": STALE,
    "acknowledged": LOST,
    "refused": (a_refused_task_made,),
    "after-the-end": (begun_by_a_lost_agent,),
    "order": (before_its_time,),
    "agreement": AGREEMENT,
    "rest": REST,
    "dependencies": DEPENDENCIES,
    "resumed": RESUMED,
}
