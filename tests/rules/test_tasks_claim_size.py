"""The bytes of a claim response are bounded, but a claim always gets at least one task."""

from __future__ import annotations

import msgspec

from quarterdeck.domain.tasks.model.rows import ClaimedTasks, State
from quarterdeck.domain.tasks.rules.ready_queues import CLAIM_BYTES_MAX
from tests.support.builders import ZONE
from tests.support.task_rules import (
    AGENT_ID,
    agent_info,
    claim_command,
    claim_ids,
    create_all,
    create_command,
    new_decider,
    task_row,
)

HALF = CLAIM_BYTES_MAX // 2


def test_claim_returns_tasks_in_rank_order_up_to_the_byte_limit() -> None:
    rows = [task_row(task_id=name) for name in "abcd"]
    decider = new_decider(*rows, content_sizes={(ZONE, "a"): HALF, (ZONE, "b"): HALF, (ZONE, "c"): 1, (ZONE, "d"): 1})
    assert claim_ids(decider, claim_command(4)) == ["a", "b"]
    assert decider.batch.tasks[ZONE, "c"].status is State.PENDING


def test_each_claim_of_a_batch_gets_one_task_of_any_size() -> None:
    rows = [task_row(task_id=name) for name in "abcd"]
    decider = new_decider(
        *rows,
        content_sizes={(ZONE, name): CLAIM_BYTES_MAX for name in "abcd"},
        agents={(ZONE, AGENT_ID): agent_info(), (ZONE, "b"): agent_info()},
    )
    assert claim_ids(decider, claim_command(4)) == ["a"]
    assert claim_ids(decider, claim_command(4, agent="b", token="other")) == ["b"]


def test_tasks_created_in_the_same_batch_count_against_the_byte_limit() -> None:
    decider = new_decider()
    large = create_command("t")
    content = msgspec.structs.replace(large.content, input_context="x" * CLAIM_BYTES_MAX)
    create_all(decider, *(msgspec.structs.replace(large, id=name, content=content) for name in ("t1", "t2")))
    assert claim_ids(decider, claim_command(2)) == ["t1"]


def test_assigned_tasks_are_returned_up_to_the_byte_limit() -> None:
    rows = [task_row(State.ASSIGNED, name) for name in "abc"]
    decider = new_decider(*rows, content_sizes={(ZONE, name): HALF for name in "abc"})
    claimed = decider.decide(claim_command(3))
    assert isinstance(claimed, ClaimedTasks)
    assert len(claimed.items) == 2
