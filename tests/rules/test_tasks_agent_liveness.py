"""Which task commands count as a heartbeat of the agent."""

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

AGENT_REF = (ZONE, AGENT_ID)
replace = msgspec.structs.replace


def progress(token: str = "k") -> Progress:
    return Progress(zone_id=ZONE, caller=CREATOR, id="t", attempt_token=token, percent=5, step=None, checkpoint=None)


def agent_last_seen(*, recently: bool) -> dict[tuple[str, str], AgentInfo]:
    info = agent_info()
    return {
        AGENT_REF: AgentInfo(
            info.capabilities, info.free_slots, info.lease_expires_at, is_stale=not recently, seen_recently=recently
        )
    }


@pytest.mark.parametrize(
    "command",
    [
        progress(),
        complete_command(),
        fail_command(),
        Release(zone_id=ZONE, caller=CREATOR, id="t", attempt_token="k"),
        Start(zone_id=ZONE, caller=CREATOR, id="t", attempt_token="k"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_report_with_the_current_token_counts_as_heartbeat(command: TaskCommand) -> None:
    decider = new_decider(task_row(State.RUNNING))
    decider.decide(command)
    assert decider.batch.agents.seen == {AGENT_REF}
    older = replace(command, attempt_token="older")
    for stale_command, status in ((older, State.RUNNING), (command, State.PAUSED), (command, State.ABORTED)):
        decider = new_decider(task_row(status))
        assert require_code(decider.decide(stale_command)) == "stale_attempt"
        assert not decider.batch.agents.seen


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (Cancel(zone_id=ZONE, caller=CREATOR, id="t", reason="r"), State.RUNNING),
        (Pause(zone_id=ZONE, caller=CREATOR, id="t"), State.RUNNING),
        (Patch(zone_id=ZONE, caller=CREATOR, id="t", status_change="pause"), State.RUNNING),
        (Abort(zone_id=ZONE, id="t", attempt_token="k", reason="timeout", jitter=0.0), State.RUNNING),
        # The server releases an attempt whose claim response was not delivered.
        (Release(zone_id=ZONE, id="t", attempt_token="k"), State.RUNNING),
        (Assign(zone_id=ZONE, id="t", agent_id=AGENT_ID, attempt_token="k"), State.PENDING),
        (RecordLaunch(zone_id=ZONE, id="t", attempt_token="k", session_key="s"), State.ASSIGNED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TaskCommand) else "",
)
def test_commands_of_others_do_not_count_as_heartbeat_of_the_agent(command: TaskCommand, status: State) -> None:
    decider = new_decider(task_row(status))
    decider.decide(command)
    assert decider.batch.tasks.updates(), "the command changed the task"
    assert not decider.batch.agents.seen


def test_claim_counts_as_heartbeat_even_if_it_returns_nothing() -> None:
    decider = new_decider(task_row())
    assert claim_ids(decider, claim_command()) == ["t"]
    assert (decider.batch.agents.seen, decider.batch.agents.activated) == ({AGENT_REF}, {})
    for agents, is_seen in (({AGENT_REF: agent_info()}, True), (agent_last_seen(recently=True), False)):
        decider = new_decider(agents=agents)
        assert claim_ids(decider, claim_command()) == []
        assert (decider.batch.agents.seen == {AGENT_REF}) is is_seen


def test_claim_revives_a_stale_agent_and_returns_tasks() -> None:
    decider = new_decider(task_row(), agents=agent_last_seen(recently=False))
    command = claim_command()
    assert claim_ids(decider, command) == ["t"]
    assert (decider.batch.agents.seen, decider.batch.agents.activated) == ({AGENT_REF}, {AGENT_REF: command})


def test_assign_to_a_stale_agent_is_refused() -> None:
    decider = new_decider(task_row(), agents=agent_last_seen(recently=False))
    assert (
        require_code(decider.decide(Assign(zone_id=ZONE, id="t", agent_id=AGENT_ID, attempt_token="k")))
        == "task_state_conflict"
    )
    assert not decider.batch.agents.held_changes
