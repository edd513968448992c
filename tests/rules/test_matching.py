"""Matching of ready tasks to agents."""

from __future__ import annotations

import random
import time
from collections import Counter

from hypothesis import given, strategies as st

from quarterdeck.domain.coordination.rules.matching import AgentCapacity, ClassQueue, Match, match_tasks

CAPABILITIES = ("python", "rust", "go")
capability_sets = st.frozensets(st.sampled_from(CAPABILITIES))


TYPES = ("research", "review")


def agent(name: str, *capabilities: str, slots: int = 1, held: int = 0, launcher: str = "") -> AgentCapacity:
    return AgentCapacity(name, frozenset(capabilities), slots, held, launcher)


def queue(*tasks: str, required: tuple[str, ...] = (), first_rank: int = 1) -> ClassQueue:
    return ClassQueue(frozenset(required), [(first_rank + n, task) for n, task in enumerate(tasks)])


@st.composite
def agent_lists(draw: st.DrawFn) -> list[AgentCapacity]:
    count = draw(st.integers(0, 8))
    return [
        AgentCapacity(
            f"a{n}",
            draw(capability_sets),
            draw(st.integers(1, 4)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from(("", "x", "y"))),
            draw(st.none() | st.frozensets(st.sampled_from(TYPES))),
        )
        for n in range(count)
    ]


@st.composite
def queue_lists(draw: st.DrawFn) -> list[ClassQueue]:
    classes = draw(st.lists(capability_sets, max_size=5, unique=True))
    ranks = st.lists(st.integers(0, 50), max_size=8)
    return [
        ClassQueue(
            required,
            sorted((rank, f"t{n}-{index}") for index, rank in enumerate(draw(ranks))),
            draw(st.sampled_from(TYPES)),
        )
        for n, required in enumerate(classes)
    ]


def is_suitable(agent: AgentCapacity, queue: ClassQueue) -> bool:
    return queue.required_capabilities <= agent.capabilities and (
        agent.task_types is None or queue.task_type in agent.task_types
    )


launcher_capacities = st.dictionaries(st.sampled_from(("x", "y")), st.integers(0, 3))


@given(queue_lists(), agent_lists(), launcher_capacities)
def test_matches_respect_slots_capabilities_and_launchers_and_are_unique(
    queues: list[ClassQueue], agents: list[AgentCapacity], launcher_capacity: dict[str, int]
) -> None:
    matches = match_tasks(queues, agents, launcher_capacity)
    queue_of = {task: queue for queue in queues for _, task in queue.ready}
    by_id = {agent.agent_id: agent for agent in agents}
    assert len({match.task_id for match in matches}) == len(matches)
    for match in matches:
        assert is_suitable(by_id[match.agent_id], queue_of[match.task_id])
    for agent_id, count in Counter(match.agent_id for match in matches).items():
        assert by_id[agent_id].held + count <= by_id[agent_id].slots
    for launcher, started in Counter(by_id[match.agent_id].launcher for match in matches).items():
        assert started <= launcher_capacity.get(launcher, started)


@given(queue_lists(), agent_lists(), launcher_capacities)
def test_no_task_is_left_while_a_suitable_agent_is_free(
    queues: list[ClassQueue], agents: list[AgentCapacity], launcher_capacity: dict[str, int]
) -> None:
    matches = match_tasks(queues, agents, launcher_capacity)
    match_counts = Counter(match.agent_id for match in matches)
    launcher_of = {agent.agent_id: agent.launcher for agent in agents}
    started = Counter(launcher_of[match.agent_id] for match in matches)
    free = [
        agent
        for agent in agents
        if agent.held + match_counts[agent.agent_id] < agent.slots
        and (agent.launcher not in launcher_capacity or started[agent.launcher] < launcher_capacity[agent.launcher])
    ]
    served = {match.task_id for match in matches}
    for queue in queues:
        if any(task not in served for _, task in queue.ready):
            assert not [agent for agent in free if is_suitable(agent, queue)]


@given(queue_lists(), agent_lists())
def test_tasks_of_a_class_are_matched_in_rank_order(queues: list[ClassQueue], agents: list[AgentCapacity]) -> None:
    served = [match.task_id for match in match_tasks(queues, agents)]
    for queue in queues:
        tasks = [task for _, task in queue.ready]
        assert [task for task in served if task in tasks] == tasks[: len({*served} & {*tasks})]


@given(queue_lists(), agent_lists(), st.randoms(use_true_random=False))
def test_matches_do_not_depend_on_the_order_of_agents(
    queues: list[ClassQueue], agents: list[AgentCapacity], rng: random.Random
) -> None:
    matches = match_tasks(queues, agents)
    rng.shuffle(agents)
    assert match_tasks(queues, agents) == matches


def test_rank_order_applies_across_classes() -> None:
    later, sooner = queue("later", first_rank=9), queue("sooner", required=("go",), first_rank=1)
    assert match_tasks([later, sooner], [agent("a", "go")]) == [Match("sooner", "a")]


def test_agent_with_task_types_gets_no_other_types() -> None:
    research_only = AgentCapacity("a", frozenset(), 5, 0, task_types=frozenset({"research"}))
    queues = [ClassQueue(frozenset(), [(1, "t")], "review"), ClassQueue(frozenset(), [(2, "u")], "research")]
    assert match_tasks(queues, [research_only]) == [Match("u", "a")]
    assert match_tasks(queues, [research_only, agent("b")]) == [Match("t", "b"), Match("u", "a")]


def test_agent_with_the_lowest_load_per_slot_gets_the_task() -> None:
    agents = [agent("half", slots=2, held=1), agent("tenth", slots=10, held=1)]
    assert match_tasks([queue("t")], agents) == [Match("t", "tenth")]


def test_equally_loaded_agents_are_chosen_by_id() -> None:
    assert match_tasks([queue("t")], [agent("b"), agent("a")]) == [Match("t", "a")]


def test_tasks_are_spread_over_agents() -> None:
    agent_ids = [match.agent_id for match in match_tasks([queue(*"stuv")], [agent("a", slots=3), agent("b", slots=3)])]
    assert agent_ids == ["a", "b", "a", "b"]


def test_launcher_capacity_limits_the_matches() -> None:
    agents = [agent(name, launcher="local") for name in "abc"]
    assert [match.agent_id for match in match_tasks([queue(*"tuv")], agents, {"local": 2})] == ["a", "b"]
    assert match_tasks([queue("t")], agents, {"local": 0}) == []


def test_10_000_tasks_of_50_classes_match_1_000_agents_in_300_ms() -> None:
    rng = random.Random(5)
    names = [f"c{n}" for n in range(50)]
    classes = [frozenset(rng.sample(names, 3)) for _ in range(50)]
    ready: list[list[tuple[int, str]]] = [[] for _ in classes]
    for task in range(10_000):
        ready[task % 50].append((rng.randrange(10**14), f"t{task}"))
    queues = [ClassQueue(required, sorted(tasks)) for required, tasks in zip(classes, ready, strict=True)]
    # Every agent has nearly all capabilities, so each competes for every class.
    agents = [AgentCapacity(f"a{n:04}", frozenset(rng.sample(names, 45)), 11, 0) for n in range(1_000)]
    durations = []
    for _ in range(3):
        started = time.perf_counter()
        matches = match_tasks(queues, agents)
        durations.append(time.perf_counter() - started)
    assert len(matches) == 10_000
    assert min(durations) < 0.3
