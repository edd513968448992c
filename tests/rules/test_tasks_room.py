"""What claims are given is bounded by how much it says, and nobody goes away with nothing for that."""

from __future__ import annotations

import msgspec

from quarterdeck.domain.tasks.model.rows import ClaimedTasks, State
from quarterdeck.domain.tasks.rules.ready_queues import CLAIM_BYTES_MAX
from tests.support.asking import ZONE
from tests.support.tasking import AGENT, board, claim, create, given, made, row, worker

HALF = CLAIM_BYTES_MAX // 2


def test_a_claim_is_given_what_there_is_room_for_in_the_order_of_turns_and_the_rest_stays() -> None:
    rows = [row(task_id=name) for name in "abcd"]
    here = board(*rows, content_sizes={(ZONE, "a"): HALF, (ZONE, "b"): HALF, (ZONE, "c"): 1, (ZONE, "d"): 1})
    assert given(here, claim(4)) == ["a", "b"]
    assert here.task((ZONE, "c")).status is State.PENDING


def test_of_those_who_claim_at_once_each_is_given_one_however_large() -> None:
    rows = [row(task_id=name) for name in "abcd"]
    here = board(
        *rows,
        content_sizes={(ZONE, name): CLAIM_BYTES_MAX for name in "abcd"},
        agents={(ZONE, AGENT): worker(), (ZONE, "b"): worker()},
    )
    assert given(here, claim(4)) == ["a"]
    assert given(here, claim(4, agent="b", token="other")) == ["b"]


def test_what_is_made_and_given_out_in_one_batch_counts_as_much() -> None:
    here = board()
    large = create("t")
    content = msgspec.structs.replace(large.content, input_context="x" * CLAIM_BYTES_MAX)
    made(here, *(msgspec.structs.replace(large, id=name, content=content) for name in ("t1", "t2")))
    assert given(here, claim(2)) == ["t1"]


def test_what_waits_for_just_this_agent_is_given_as_far_as_there_is_room() -> None:
    rows = [row(State.ASSIGNED, name) for name in "abc"]
    here = board(*rows, content_sizes={(ZONE, name): HALF for name in "abc"})
    leases = here.decide(claim(3))
    assert isinstance(leases, ClaimedTasks)
    assert len(leases.items) == 2
