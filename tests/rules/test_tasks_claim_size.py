"""What claims are given is bounded by how much it says, and nobody goes away with nothing for that."""

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


def test_a_claim_is_given_what_there_is_room_for_in_the_order_of_turns_and_the_rest_stays() -> None:
    rows = [task_row(task_id=name) for name in "abcd"]
    here = new_decider(*rows, content_sizes={(ZONE, "a"): HALF, (ZONE, "b"): HALF, (ZONE, "c"): 1, (ZONE, "d"): 1})
    assert claim_ids(here, claim_command(4)) == ["a", "b"]
    assert here.task((ZONE, "c")).status is State.PENDING


def test_of_those_who_claim_at_once_each_is_given_one_however_large() -> None:
    rows = [task_row(task_id=name) for name in "abcd"]
    here = new_decider(
        *rows,
        content_sizes={(ZONE, name): CLAIM_BYTES_MAX for name in "abcd"},
        agents={(ZONE, AGENT_ID): agent_info(), (ZONE, "b"): agent_info()},
    )
    assert claim_ids(here, claim_command(4)) == ["a"]
    assert claim_ids(here, claim_command(4, agent="b", token="other")) == ["b"]


def test_what_is_made_and_given_out_in_one_batch_counts_as_much() -> None:
    here = new_decider()
    large = create_command("t")
    content = msgspec.structs.replace(large.content, input_context="x" * CLAIM_BYTES_MAX)
    create_all(here, *(msgspec.structs.replace(large, id=name, content=content) for name in ("t1", "t2")))
    assert claim_ids(here, claim_command(2)) == ["t1"]


def test_what_waits_for_just_this_agent_is_given_as_far_as_there_is_room() -> None:
    rows = [task_row(State.ASSIGNED, name) for name in "abc"]
    here = new_decider(*rows, content_sizes={(ZONE, name): HALF for name in "abc"})
    leases = here.decide(claim_command(3))
    assert isinstance(leases, ClaimedTasks)
    assert len(leases.items) == 2
