"""Names, scores and bodies of what Redis shows of tasks and agents: the seed's, and what they mean to whoever reads
them back."""

from __future__ import annotations

import json

import pytest

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.key_layout import KeyFamily, KeyPage, KeyRemoval, MirroredTask, TaskHolder
from quarterdeck.core.clock import system_now
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.operations.redis_rows import agent_mark, task_mark, to_pulse
from quarterdeck.domain.zones.model import DEFAULT_ZONE
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.mirrors.keys import comparison_for, find_wrong_claims
from tests.support.agents import agent_row
from tests.support.builders import NOW, ZONE
from tests.support.task_rules import task_row

PENDING, ACTIVE = KeyFamily(key_layout.PENDING, "zset"), KeyFamily(key_layout.ACTIVE, "set")
OF_AGENT, STALE = KeyFamily(key_layout.AGENT_TASKS, "hash"), KeyFamily(key_layout.STALE_AGENTS, "zset")


def test_agents_of_the_usual_zone_have_the_seeds_keys_and_no_two_agents_share_one() -> None:
    assert key_layout.DEFAULT_ZONE == DEFAULT_ZONE
    assert key_layout.format_agent_name(("default", "a")) == "a"
    refs = [("default", "z:a"), ("z", "a"), ("default", "z"), ("z:a", "b"), ("z", "a:b")]
    names = [key_layout.format_agent_name(ref) for ref in refs]
    assert len(set(names)) == len(refs)
    assert [key_layout.parse_agent_name(name) for name in names] == refs


@pytest.mark.parametrize("name", ["", "a b", "/a", "z/", "default/a", "a/b/c", "a\x00", "\udcff"])
def test_a_name_that_nobody_can_have_means_nobody(name: str) -> None:
    assert key_layout.parse_agent_name(name) is None


def test_a_higher_priority_comes_first_and_among_equals_the_older_and_no_score_is_rounded() -> None:
    now = system_now()
    ordered = [
        key_layout.pending_score(10, now),
        key_layout.pending_score(10, now + 1),
        key_layout.pending_score(9, 0),
        key_layout.pending_score(1, now),
    ]
    assert ordered == sorted(ordered)
    assert all(int(float(score)) == score for score in ordered)
    assert key_layout.pending_score(8, 1_700_000_000_123) == 2 * 10**13 + 1_700_000_000_123


def test_events_of_tasks_and_agents_are_published_with_the_seeds_bodies_and_nothing_else_is() -> None:
    def event(kind: str, data: str = "{}") -> Event:
        return Event(7, "e", "z", kind, "s", "actor", None, None, data, None, 1)

    [told] = key_layout.build_entries(event("task.completed", '{"agentId": "a", "reason": "hush"}'))
    assert told.stream == "tasks:events:z"
    assert json.loads(told.fields["body"]) == {"event": "task_completed", "task_id": "s"}
    assert key_layout.changed_refs([told]) == ([("z", "s")], [("z", "a")])
    [told] = key_layout.build_entries(event("agent.stale"))
    assert told.stream == "agents:events:z"
    assert json.loads(told.fields["body"]) == {"event": "agent_stale", "agent_id": "s"}
    assert key_layout.changed_refs([told, told]) == ([], [("z", "s")])
    assert key_layout.build_entries(event("session.spawn")) == []


def test_only_what_may_begin_is_pending_and_only_what_waits_for_a_backoff_recovers() -> None:
    waits = {0: key_layout.pending_score(5, task_row().created_at), 1: None, 2: None}
    for number, score in waits.items():
        assert task_mark(task_row(waits_for=number), NOW).score == score
    for state in (State.FAILED, State.ABORTED):
        assert task_mark(task_row(status=state, waits_for=1, final=0), NOW).is_recovering
        assert not task_mark(task_row(status=state, final=1), NOW).is_recovering
    assert not task_mark(task_row(waits_for=1), NOW).is_recovering
    held = task_mark(task_row(status=State.RUNNING, agent_id="a", session_key="k", assigned_at=3, started_at=4), NOW)
    assert (held.score, held.holder) == (None, TaskHolder("a", "k", 3, 4))
    # An end keeps the name of whoever made it.
    assert task_mark(task_row(status=State.COMPLETED, agent_id="a"), NOW).holder is None


def test_an_agent_is_shown_as_the_seed_calls_it_and_not_at_all_once_it_has_ended() -> None:
    assert agent_mark(agent_row(held=0), "", NOW).status == "idle"
    assert agent_mark(agent_row(held=0, current_task_id="t"), "", NOW).current_task == ""
    working = agent_mark(agent_row(held=1), "newest", NOW)
    assert (working.status, working.current_task, working.is_stale) == ("running", "newest", False)
    assert agent_mark(agent_row(held=1, current_task_id="t"), "newest", NOW).current_task == "t"
    assert agent_mark(agent_row(status=AgentState.ERROR), "", NOW)[2:6] == ("error", "", NOW, True)
    assert agent_mark(agent_row(status=AgentState.TERMINATED), "", NOW).status is None
    assert json.loads(to_pulse(agent_row(held=1, current_task_id="t")).to_json()) == {
        "status": "running",
        "task_id": "t",
        "timestamp": NOW,
    }
    assert to_pulse(agent_row(held=1)).task_id is None


def test_what_stands_there_is_asked_about_and_what_nobody_can_have_written_is_struck_out() -> None:
    asked = comparison_for(KeyPage(PENDING, "tasks:pending:z", ["t", "no id", "\udcff"]))
    assert asked.tasks == [("z", "t")]
    assert [strike.member for strike in asked.removals] == ["no id", "\udcff"]
    assert comparison_for(KeyPage(PENDING, "tasks:pending:no zone")).removals == [
        KeyRemoval("tasks:pending:no zone", "")
    ]
    foreign = KeyPage(ACTIVE, "tasks:active:z", has_wrong_type=True)
    assert comparison_for(foreign).removals == [KeyRemoval("tasks:active:z", "")]
    stale = comparison_for(KeyPage(STALE, key_layout.STALE_AGENTS, ["a", "z/b", "z/b/c"]))
    assert stale.agents == [("default", "a"), ("z", "b")]
    assert [strike.member for strike in stale.removals] == ["z/b/c"]
    assert comparison_for(KeyPage(PENDING, "")).is_empty


def test_what_is_said_to_be_held_stays_only_if_that_very_agent_holds_it_in_that_very_session() -> None:
    def mark(task_id: str, agent_id: str | None, session: str = "s") -> MirroredTask:
        holder = None if agent_id is None else TaskHolder(agent_id, session, 1, 1)
        return MirroredTask(ZONE, task_id, holder=holder)

    page = KeyPage(ACTIVE, f"tasks:active:{ZONE}", ["t:s", "t:other", "t:1:s", "ended:s", "none"])
    asked = comparison_for(page)
    assert [strike.member for strike in asked.removals] == ["none"]
    marks = [mark("t", "a"), mark("t:1", "a"), mark("ended", None)]
    assert [s.member for s in find_wrong_claims(asked.claims, marks)] == ["t:other", "ended:s"]
    of_agent = comparison_for(KeyPage(OF_AGENT, f"agent:tasks:{ZONE}/a", ["mine", "theirs"]))
    assert of_agent.agents == [(ZONE, "a")]
    struck = find_wrong_claims(of_agent.claims, [mark("mine", "a"), mark("theirs", "b")])
    assert [s.member for s in struck] == ["theirs"]
