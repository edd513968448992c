"""Names, scores and bodies of what Redis shows of tasks and agents: the seed's, and what they mean to whoever reads
them back."""

from __future__ import annotations

import json

import pytest

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.key_layout import Family, Holder, Page, Strike, TaskMark
from quarterdeck.core.clock import system_now
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.operations.redis_rows import agent_mark, pulse_of, task_mark
from quarterdeck.domain.zones.model import DEFAULT_ZONE
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.mirrors.keys import asked_of, refuted
from tests.support.agency import agent
from tests.support.asking import NOW, ZONE
from tests.support.tasking import row

PENDING, ACTIVE = Family(key_layout.PENDING, "zset"), Family(key_layout.ACTIVE, "set")
OF_AGENT, STALE = Family(key_layout.OF_AGENT, "hash"), Family(key_layout.STALE, "zset")


def test_agents_of_the_usual_zone_have_the_seeds_keys_and_no_two_agents_share_one() -> None:
    assert key_layout.PLAIN_ZONE == DEFAULT_ZONE
    assert key_layout.agent_name(("default", "a")) == "a"
    refs = [("default", "z:a"), ("z", "a"), ("default", "z"), ("z:a", "b"), ("z", "a:b")]
    names = [key_layout.agent_name(ref) for ref in refs]
    assert len(set(names)) == len(refs)
    assert [key_layout.agent_ref(name) for name in names] == refs


@pytest.mark.parametrize("name", ["", "a b", "/a", "z/", "default/a", "a/b/c", "a\x00", "\udcff"])
def test_a_name_that_nobody_can_have_means_nobody(name: str) -> None:
    assert key_layout.agent_ref(name) is None


def test_a_higher_priority_comes_first_and_among_equals_the_older_and_no_score_is_rounded() -> None:
    now = system_now()
    ordered = [
        key_layout.score(10, now),
        key_layout.score(10, now + 1),
        key_layout.score(9, 0),
        key_layout.score(1, now),
    ]
    assert ordered == sorted(ordered)
    assert all(int(float(score)) == score for score in ordered)
    assert key_layout.score(8, 1_700_000_000_123) == 2 * 10**13 + 1_700_000_000_123


def test_events_of_tasks_and_agents_are_published_with_the_seeds_bodies_and_nothing_else_is() -> None:
    def event(kind: str, data: str = "{}") -> Event:
        return Event(7, "e", "z", kind, "s", "actor", None, None, data, None, 1)

    [told] = key_layout.entries_of(event("task.completed", '{"agentId": "a", "reason": "hush"}'))
    assert told.stream == "tasks:events:z"
    assert json.loads(told.fields["body"]) == {"event": "task_completed", "task_id": "s"}
    assert key_layout.touched([told]) == ([("z", "s")], [("z", "a")])
    [told] = key_layout.entries_of(event("agent.stale"))
    assert told.stream == "agents:events:z"
    assert json.loads(told.fields["body"]) == {"event": "agent_stale", "agent_id": "s"}
    assert key_layout.touched([told, told]) == ([], [("z", "s")])
    assert key_layout.entries_of(event("session.spawn")) == []


def test_only_what_may_begin_is_pending_and_only_what_waits_for_a_backoff_recovers() -> None:
    waits = {0: key_layout.score(5, row().created_at), 1: None, 2: None}
    for number, score in waits.items():
        assert task_mark(row(waits=number), NOW).score == score
    for state in (State.FAILED, State.ABORTED):
        assert task_mark(row(status=state, waits=1, final=0), NOW).recovers
        assert not task_mark(row(status=state, final=1), NOW).recovers
    assert not task_mark(row(waits=1), NOW).recovers
    held = task_mark(row(status=State.RUNNING, agent_id="a", session_key="k", assigned_at=3, started_at=4), NOW)
    assert (held.score, held.holder) == (None, Holder("a", "k", 3, 4))
    # An end keeps the name of whoever made it.
    assert task_mark(row(status=State.COMPLETED, agent_id="a"), NOW).holder is None


def test_an_agent_is_shown_as_the_seed_calls_it_and_not_at_all_once_it_has_ended() -> None:
    assert agent_mark(agent(held=0), "", NOW).status == "idle"
    assert agent_mark(agent(held=0, current_task_id="t"), "", NOW).current_task == ""
    working = agent_mark(agent(held=1), "newest", NOW)
    assert (working.status, working.current_task, working.is_stale) == ("running", "newest", False)
    assert agent_mark(agent(held=1, current_task_id="t"), "newest", NOW).current_task == "t"
    assert agent_mark(agent(status=AgentState.ERROR), "", NOW)[2:6] == ("error", "", NOW, True)
    assert agent_mark(agent(status=AgentState.TERMINATED), "", NOW).status is None
    assert json.loads(pulse_of(agent(held=1, current_task_id="t")).told()) == {
        "status": "running",
        "task_id": "t",
        "timestamp": NOW,
    }
    assert pulse_of(agent(held=1)).task_id is None


def test_what_stands_there_is_asked_about_and_what_nobody_can_have_written_is_struck_out() -> None:
    asked = asked_of(Page(PENDING, "tasks:pending:z", ["t", "no id", "\udcff"]))
    assert asked.tasks == [("z", "t")]
    assert [strike.member for strike in asked.strikes] == ["no id", "\udcff"]
    assert asked_of(Page(PENDING, "tasks:pending:no zone")).strikes == [Strike("tasks:pending:no zone", "")]
    foreign = Page(ACTIVE, "tasks:active:z", is_foreign=True)
    assert asked_of(foreign).strikes == [Strike("tasks:active:z", "")]
    stale = asked_of(Page(STALE, key_layout.STALE, ["a", "z/b", "z/b/c"]))
    assert stale.agents == [("default", "a"), ("z", "b")]
    assert [strike.member for strike in stale.strikes] == ["z/b/c"]
    assert asked_of(Page(PENDING, "")).is_empty


def test_what_is_said_to_be_held_stays_only_if_that_very_agent_holds_it_in_that_very_session() -> None:
    def mark(task_id: str, agent_id: str | None, session: str = "s") -> TaskMark:
        holder = None if agent_id is None else Holder(agent_id, session, 1, 1)
        return TaskMark(ZONE, task_id, holder=holder)

    page = Page(ACTIVE, f"tasks:active:{ZONE}", ["t:s", "t:other", "t:1:s", "ended:s", "none"])
    asked = asked_of(page)
    assert [strike.member for strike in asked.strikes] == ["none"]
    marks = [mark("t", "a"), mark("t:1", "a"), mark("ended", None)]
    assert [s.member for s in refuted(asked.claims, marks)] == ["t:other", "ended:s"]
    of_agent = asked_of(Page(OF_AGENT, f"agent:tasks:{ZONE}/a", ["mine", "theirs"]))
    assert of_agent.agents == [(ZONE, "a")]
    struck = refuted(of_agent.claims, [mark("mine", "a"), mark("theirs", "b")])
    assert [s.member for s in struck] == ["theirs"]
