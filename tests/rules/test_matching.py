"""Matching: who gets which task."""

from __future__ import annotations

import random
import time
from collections import Counter

from hypothesis import given, strategies as st

from quarterdeck.domain.coordination.rules.matching import AgentCapacity, ClassQueue, Match, match_tasks

CAPABILITIES = ("python", "rust", "go")
some_capabilities = st.frozensets(st.sampled_from(CAPABILITIES))


TYPES = ("research", "review")


def seat(name: str, *capabilities: str, slots: int = 1, held: int = 0, launcher: str = "") -> AgentCapacity:
    return AgentCapacity(name, frozenset(capabilities), slots, held, launcher)


def queue(*tasks: str, needs: tuple[str, ...] = (), first_turn: int = 1) -> ClassQueue:
    return ClassQueue(frozenset(needs), [(first_turn + n, task) for n, task in enumerate(tasks)])


@st.composite
def seats_drawn(draw: st.DrawFn) -> list[AgentCapacity]:
    count = draw(st.integers(0, 8))
    return [
        AgentCapacity(
            f"a{n}",
            draw(some_capabilities),
            draw(st.integers(1, 4)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from(("", "x", "y"))),
            draw(st.none() | st.frozensets(st.sampled_from(TYPES))),
        )
        for n in range(count)
    ]


@st.composite
def queues_drawn(draw: st.DrawFn) -> list[ClassQueue]:
    kinds = draw(st.lists(some_capabilities, max_size=5, unique=True))
    turns = st.lists(st.integers(0, 50), max_size=8)
    return [
        ClassQueue(
            required,
            sorted((turn, f"t{n}-{place}") for place, turn in enumerate(draw(turns))),
            draw(st.sampled_from(TYPES)),
        )
        for n, required in enumerate(kinds)
    ]


def suits(seat: AgentCapacity, queue: ClassQueue) -> bool:
    return queue.required_capabilities <= seat.capabilities and (
        seat.task_types is None or queue.task_type in seat.task_types
    )


rooms = st.dictionaries(st.sampled_from(("x", "y")), st.integers(0, 3))


@given(queues_drawn(), seats_drawn(), rooms)
def test_nobody_gets_more_than_its_slots_or_what_it_cannot_do_and_nothing_twice(
    queues: list[ClassQueue], seats: list[AgentCapacity], room: dict[str, int]
) -> None:
    matches = match_tasks(queues, seats, room)
    queue_of = {task: each for each in queues for _, task in each.ready}
    by_id = {each.agent_id: each for each in seats}
    assert len({match.task_id for match in matches}) == len(matches)
    for match in matches:
        assert suits(by_id[match.agent_id], queue_of[match.task_id])
    for agent, given_to in Counter(match.agent_id for match in matches).items():
        assert by_id[agent].held + given_to <= by_id[agent].slots
    for launcher, started in Counter(by_id[match.agent_id].launcher for match in matches).items():
        assert started <= room.get(launcher, started)


@given(queues_drawn(), seats_drawn(), rooms)
def test_no_task_is_left_while_an_agent_that_suits_it_is_free(
    queues: list[ClassQueue], seats: list[AgentCapacity], room: dict[str, int]
) -> None:
    matches = match_tasks(queues, seats, room)
    given_to = Counter(match.agent_id for match in matches)
    launcher_of = {each.agent_id: each.launcher for each in seats}
    started = Counter(launcher_of[match.agent_id] for match in matches)
    free = [
        each
        for each in seats
        if each.held + given_to[each.agent_id] < each.slots
        and (each.launcher not in room or started[each.launcher] < room[each.launcher])
    ]
    served = {match.task_id for match in matches}
    for each in queues:
        if any(task not in served for _, task in each.ready):
            assert not [one for one in free if suits(one, each)]


@given(queues_drawn(), seats_drawn())
def test_within_a_class_nobody_is_served_before_one_whose_turn_is_earlier(
    queues: list[ClassQueue], seats: list[AgentCapacity]
) -> None:
    served = [match.task_id for match in match_tasks(queues, seats)]
    for each in queues:
        own = [task for _, task in each.ready]
        assert [task for task in served if task in own] == own[: len({*served} & {*own})]


@given(queues_drawn(), seats_drawn(), st.randoms(use_true_random=False))
def test_the_same_tasks_and_agents_give_the_same_matches_in_whatever_order_they_come(
    queues: list[ClassQueue], seats: list[AgentCapacity], chance: random.Random
) -> None:
    found = match_tasks(queues, seats)
    chance.shuffle(seats)
    assert match_tasks(queues, seats) == found


def test_turns_count_across_classes() -> None:
    later, sooner = queue("later", first_turn=9), queue("sooner", needs=("go",), first_turn=1)
    assert match_tasks([later, sooner], [seat("a", "go")]) == [Match("sooner", "a")]


def test_one_that_is_for_certain_types_is_given_no_others() -> None:
    only = AgentCapacity("a", frozenset(), 5, 0, task_types=frozenset({"research"}))
    queues = [ClassQueue(frozenset(), [(1, "t")], "review"), ClassQueue(frozenset(), [(2, "u")], "research")]
    assert match_tasks(queues, [only]) == [Match("u", "a")]
    assert match_tasks(queues, [only, seat("b")]) == [Match("t", "b"), Match("u", "a")]


def test_the_least_loaded_is_given_it_relative_to_what_it_can_hold() -> None:
    seats = [seat("half", slots=2, held=1), seat("tenth", slots=10, held=1)]
    assert match_tasks([queue("t")], seats) == [Match("t", "tenth")]


def test_of_equals_the_one_with_the_first_id_is_given_it() -> None:
    assert match_tasks([queue("t")], [seat("b"), seat("a")]) == [Match("t", "a")]


def test_work_is_spread_before_it_is_piled_up() -> None:
    given_to = [match.agent_id for match in match_tasks([queue(*"stuv")], [seat("a", slots=3), seat("b", slots=3)])]
    assert given_to == ["a", "b", "a", "b"]


def test_a_launcher_that_can_start_no_more_leaves_the_rest_waiting() -> None:
    seats = [seat(name, launcher="local") for name in "abc"]
    assert [match.agent_id for match in match_tasks([queue(*"tuv")], seats, {"local": 2})] == ["a", "b"]
    assert match_tasks([queue("t")], seats, {"local": 0}) == []


def test_ten_thousand_tasks_of_fifty_kinds_are_matched_to_a_thousand_agents_in_well_under_a_second() -> None:
    chance = random.Random(5)
    names = [f"c{n}" for n in range(50)]
    kinds = [frozenset(chance.sample(names, 3)) for _ in range(50)]
    waiting: list[list[tuple[int, str]]] = [[] for _ in kinds]
    for task in range(10_000):
        waiting[task % 50].append((chance.randrange(10**14), f"t{task}"))
    queues = [ClassQueue(kind, sorted(tasks)) for kind, tasks in zip(kinds, waiting, strict=True)]
    # Everybody can nearly everything: each agent stands in the way of every class.
    seats = [AgentCapacity(f"a{n:04}", frozenset(chance.sample(names, 45)), 11, 0) for n in range(1_000)]
    took = []
    for _ in range(3):
        began = time.perf_counter()
        matches = match_tasks(queues, seats)
        took.append(time.perf_counter() - began)
    assert len(matches) == 10_000
    assert min(took) < 0.3
