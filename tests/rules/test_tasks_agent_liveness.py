"""The board of tasks: whose word is a sign of life of an agent, and whose is not."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.tasks.model.commands import (
    Abort,
    Assign,
    Cancel,
    Patch,
    Pause,
    Progress,
    RecordLaunch,
    Release,
    Start,
    TaskCommand,
)
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.rules.batch_input import AgentInfo
from tests.support.builders import ZONE
from tests.support.task_rules import (
    AGENT_ID,
    CREATOR,
    agent_info,
    claim_command,
    claim_ids,
    complete_command,
    fail_command,
    new_decider,
    require_code,
    task_row,
)

WHO = (ZONE, AGENT_ID)
replace = msgspec.structs.replace


def progress(token: str = "k") -> Progress:
    return Progress(zone_id=ZONE, caller=CREATOR, id="t", attempt_token=token, percent=5, step=None, checkpoint=None)


def lost(*, was_just_heard: bool = False) -> dict[tuple[str, str], AgentInfo]:
    alive = agent_info()
    return {
        WHO: AgentInfo(
            alive.capabilities,
            alive.free_slots,
            alive.lease_expires_at,
            is_stale=not was_just_heard,
            seen_recently=was_just_heard,
        )
    }


@pytest.mark.parametrize(
    "word",
    [
        progress(),
        complete_command(),
        fail_command(),
        Release(zone_id=ZONE, caller=CREATOR, id="t", attempt_token="k"),
        Start(zone_id=ZONE, caller=CREATOR, id="t", attempt_token="k"),
    ],
    ids=lambda word: type(word).__name__,
)
def test_an_agent_is_heard_of_by_what_is_said_under_the_token_of_its_attempt(word: TaskCommand) -> None:
    here = new_decider(task_row(State.RUNNING))
    here.decide(word)
    assert here.seen_agents == {WHO}
    older = replace(word, attempt_token="older")
    for refused, held in ((older, State.RUNNING), (word, State.PAUSED), (word, State.ABORTED)):
        here = new_decider(task_row(held))
        assert require_code(here.decide(refused)) == "stale_attempt"
        assert not here.seen_agents


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (Cancel(zone_id=ZONE, caller=CREATOR, id="t", reason="r"), State.RUNNING),
        (Pause(zone_id=ZONE, caller=CREATOR, id="t"), State.RUNNING),
        (Patch(zone_id=ZONE, caller=CREATOR, id="t", status_change="pause"), State.RUNNING),
        (Abort(zone_id=ZONE, id="t", attempt_token="k", reason="timeout", jitter=0.0), State.RUNNING),
        # A lease that reached nobody: the server gives it back.
        (Release(zone_id=ZONE, id="t", attempt_token="k"), State.RUNNING),
        (Assign(zone_id=ZONE, id="t", agent_id=AGENT_ID, attempt_token="k"), State.PENDING),
        (RecordLaunch(zone_id=ZONE, id="t", attempt_token="k", session_key="s"), State.ASSIGNED),
    ],
    ids=lambda asked: type(asked).__name__ if isinstance(asked, TaskCommand) else "",
)
def test_an_agent_is_not_heard_of_by_what_others_do_with_its_tasks(ask: TaskCommand, status: State) -> None:
    here = new_decider(task_row(status))
    here.decide(ask)
    assert here.originals, "it did something"
    assert not here.seen_agents


def test_a_claim_is_a_sign_of_life_whether_it_is_given_something_or_not() -> None:
    here = new_decider(task_row())
    assert claim_ids(here, claim_command()) == ["t"]
    assert (here.seen_agents, here.revived_agents) == ({WHO}, {})
    for workers, is_noted in (({WHO: agent_info()}, True), (lost(was_just_heard=True), False)):
        here = new_decider(agents=workers)
        assert claim_ids(here, claim_command()) == []
        assert (here.seen_agents == {WHO}) is is_noted


def test_by_its_claim_an_agent_that_was_lost_is_back_and_is_given_work() -> None:
    here = new_decider(task_row(), agents=lost())
    ask = claim_command()
    assert claim_ids(here, ask) == ["t"]
    assert (here.seen_agents, here.revived_agents) == ({WHO}, {WHO: ask})


def test_nothing_is_assigned_to_an_agent_that_is_lost() -> None:
    here = new_decider(task_row(), agents=lost())
    assert (
        require_code(here.decide(Assign(zone_id=ZONE, id="t", agent_id=AGENT_ID, attempt_token="k")))
        == "task_state_conflict"
    )
    assert not here.held_changes
