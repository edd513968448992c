"""Names, scores and bodies of the Redis keys of tasks and agents, and their comparison with the database."""

from __future__ import annotations

import json

import pytest

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.key_layout import KeyFamily, KeyPage, KeyRemoval, MirroredTask, TaskHolder
from quarterdeck.core.clock import system_now
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.operations.redis_rows import to_heartbeat, to_mirrored_agent, to_mirrored_task
from quarterdeck.domain.zones.model import DEFAULT_ZONE
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.mirrors.keys import build_comparison_part, find_wrong_holders
from tests.support.agents import agent_row
from tests.support.builders import NOW, ZONE
from tests.support.task_rules import task_row

PENDING, ACTIVE = KeyFamily(key_layout.PENDING_PREFIX, "zset"), KeyFamily(key_layout.ACTIVE_PREFIX, "set")
OF_AGENT, STALE = KeyFamily(key_layout.AGENT_TASKS_PREFIX, "hash"), KeyFamily(key_layout.STALE_AGENTS, "zset")


def test_agent_names_are_unique_and_omit_the_default_zone() -> None:
    assert key_layout.DEFAULT_ZONE == DEFAULT_ZONE
    assert key_layout.format_agent_name(("default", "a")) == "a"
    refs = [("default", "z:a"), ("z", "a"), ("default", "z"), ("z:a", "b"), ("z", "a:b")]
    names = [key_layout.format_agent_name(ref) for ref in refs]
    assert len(set(names)) == len(refs)
    assert [key_layout.parse_agent_name(name) for name in names] == refs


@pytest.mark.parametrize("name", ["", "a b", "/a", "z/", "default/a", "a/b/c", "a\x00", "\udcff"])
def test_invalid_agent_name_parses_to_none(name: str) -> None:
    assert key_layout.parse_agent_name(name) is None


def test_pending_score_orders_by_priority_then_age_without_rounding() -> None:
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


def test_only_task_and_agent_events_become_entries_with_documented_bodies() -> None:
    def event(kind: str, data: str = "{}") -> Event:
        return Event(7, "e", "z", kind, "s", "actor", None, None, data, None, 1)

    [entry] = key_layout.build_entries(event("task.completed", '{"agentId": "a", "reason": "secret"}'))
    assert entry.stream == "tasks:events:z"
    assert json.loads(entry.fields["body"]) == {"event": "task_completed", "task_id": "s"}
    assert key_layout.changed_refs([entry]) == ([("z", "s")], [("z", "a")])
    [entry] = key_layout.build_entries(event("agent.stale"))
    assert entry.stream == "agents:events:z"
    assert json.loads(entry.fields["body"]) == {"event": "agent_stale", "agent_id": "s"}
    assert key_layout.changed_refs([entry, entry]) == ([], [("z", "s")])
    assert key_layout.build_entries(event("session.spawn")) == []


def test_only_ready_tasks_have_a_score_and_only_backoff_marks_recovering() -> None:
    scores = {0: key_layout.pending_score(5, task_row().created_at), 1: None, 2: None}
    for waits_for, score in scores.items():
        assert to_mirrored_task(task_row(waits_for=waits_for), NOW).score == score
    for state in (State.FAILED, State.ABORTED):
        assert to_mirrored_task(task_row(status=state, waits_for=1, final=0), NOW).is_recovering
        assert not to_mirrored_task(task_row(status=state, final=1), NOW).is_recovering
    assert not to_mirrored_task(task_row(waits_for=1), NOW).is_recovering
    held = to_mirrored_task(
        task_row(status=State.RUNNING, agent_id="a", session_key="k", assigned_at=3, started_at=4), NOW
    )
    assert (held.score, held.holder) == (None, TaskHolder("a", "k", 3, 4))
    # A completed task keeps its agent_id.
    assert to_mirrored_task(task_row(status=State.COMPLETED, agent_id="a"), NOW).holder is None


def test_agent_mark_has_the_published_status_and_none_after_termination() -> None:
    assert to_mirrored_agent(agent_row(held=0), "", NOW).status == "idle"
    assert to_mirrored_agent(agent_row(held=0, current_task_id="t"), "", NOW).current_task == ""
    working = to_mirrored_agent(agent_row(held=1), "newest", NOW)
    assert (working.status, working.current_task, working.is_stale) == ("running", "newest", False)
    assert to_mirrored_agent(agent_row(held=1, current_task_id="t"), "newest", NOW).current_task == "t"
    assert to_mirrored_agent(agent_row(status=AgentState.ERROR), "", NOW)[2:6] == ("error", "", NOW, True)
    assert to_mirrored_agent(agent_row(status=AgentState.TERMINATED), "", NOW).status is None
    assert json.loads(to_heartbeat(agent_row(held=1, current_task_id="t")).to_json()) == {
        "status": "running",
        "task_id": "t",
        "timestamp": NOW,
    }
    assert to_heartbeat(agent_row(held=1)).task_id is None


def test_stored_members_are_compared_and_impossible_ones_are_removed() -> None:
    comparison = build_comparison_part(KeyPage(PENDING, "tasks:pending:z", ["t", "no id", "\udcff"]))
    assert comparison.tasks == [("z", "t")]
    assert [removal.member for removal in comparison.removals] == ["no id", "\udcff"]
    assert build_comparison_part(KeyPage(PENDING, "tasks:pending:no zone")).removals == [
        KeyRemoval("tasks:pending:no zone", "")
    ]
    wrong_type = KeyPage(ACTIVE, "tasks:active:z", has_wrong_type=True)
    assert build_comparison_part(wrong_type).removals == [KeyRemoval("tasks:active:z", "")]
    stale = build_comparison_part(KeyPage(STALE, key_layout.STALE_AGENTS, ["a", "z/b", "z/b/c"]))
    assert stale.agents == [("default", "a"), ("z", "b")]
    assert [removal.member for removal in stale.removals] == ["z/b/c"]
    assert build_comparison_part(KeyPage(PENDING, "")).is_empty


def test_stored_claim_is_kept_only_for_the_same_agent_and_session() -> None:
    def mark(task_id: str, agent_id: str | None, session: str = "s") -> MirroredTask:
        holder = None if agent_id is None else TaskHolder(agent_id, session, 1, 1)
        return MirroredTask(ZONE, task_id, holder=holder)

    page = KeyPage(ACTIVE, f"tasks:active:{ZONE}", ["t:s", "t:other", "t:1:s", "ended:s", "none"])
    comparison = build_comparison_part(page)
    assert [removal.member for removal in comparison.removals] == ["none"]
    marks = [mark("t", "a"), mark("t:1", "a"), mark("ended", None)]
    assert [removal.member for removal in find_wrong_holders(comparison.holders, marks)] == ["t:other", "ended:s"]
    of_agent = build_comparison_part(KeyPage(OF_AGENT, f"agent:tasks:{ZONE}/a", ["mine", "theirs"]))
    assert of_agent.agents == [(ZONE, "a")]
    removals = find_wrong_holders(of_agent.holders, [mark("mine", "a"), mark("theirs", "b")])
    assert [removal.member for removal in removals] == ["theirs"]
