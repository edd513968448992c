"""The matching of the coordinator's cycle, without I/O: 10,000 tasks and 1,000 agents."""

from __future__ import annotations

import random
import time

from bench.plan import BenchError
from bench.raw_http import percentile
from bench.results import Figure, Findings, Line, Run
from bench.testbed import Testbed
from quarterdeck.domain.coordination.rules.matching import AgentCapacity, ClassQueue, match_tasks

TASK_COUNT, CAPABILITY_SETS, AGENT_COUNT = 10_000, 50, 1_000
MAX_MS = 300.0
CAPABILITY_COUNT = 20
REPEATS = 9
CAPACITY_FOR_ALL, CAPACITY_FOR_HALF = "slots for all", "slots for half"


def measure(testbed: Testbed) -> Findings:
    cases = {CAPACITY_FOR_ALL: 10, CAPACITY_FOR_HALF: 5}
    runs: dict[str, list[Run]] = {}
    for number in range(testbed.plan.rounds):
        rng = random.Random(number)
        for name, slots in cases.items():
            runs.setdefault(name, []).append(_time_matching(_build_queues(rng), _build_agents(rng, slots), name))
    return Findings(
        f"Matching {TASK_COUNT:,} tasks of {CAPABILITY_SETS} capability sets to {AGENT_COUNT:,} agents",
        lines=[Line(f"matching, {name}", line_runs) for name, line_runs in runs.items()],
        figures=[
            Figure(f"Matching, {name}", [run.p50_ms or 0.0 for run in line_runs], "ms", MAX_MS, at_most=True)
            for name, line_runs in runs.items()
        ],
        notes=[
            f"Each set requires one to four of {CAPABILITY_COUNT} capabilities, and each agent has eight to all of "
            "them, at random in each round. Agents already hold some tasks. The median of "
            f"{REPEATS} repetitions in each round. Each match must pair a task with an agent that has the required "
            "capabilities and a free slot.",
        ],
    )  # fmt: skip


def _build_queues(rng: random.Random) -> list[ClassQueue]:
    ranks = list(range(TASK_COUNT))
    rng.shuffle(ranks)
    queues = []
    for number in range(CAPABILITY_SETS):
        ready = sorted((rank, f"task-{rank:05d}") for rank in ranks[number::CAPABILITY_SETS])
        queues.append(ClassQueue(frozenset(_sample_capabilities(rng, 1, 4)), ready))
    return queues


def _build_agents(rng: random.Random, slots: int) -> list[AgentCapacity]:
    """Agents with `slots` free slots and some used ones. One in 50 has all capabilities, so every set has an agent."""
    agents = []
    for number in range(AGENT_COUNT):
        held = rng.randrange(3)
        capabilities = _sample_capabilities(rng, 8, CAPABILITY_COUNT) if number % 50 else range(CAPABILITY_COUNT)
        agents.append(AgentCapacity(f"agent-{number:04d}", frozenset(map(str, capabilities)), slots + held, held))
    return agents


def _sample_capabilities(rng: random.Random, minimum: int, maximum: int) -> list[str]:
    return rng.sample([str(number) for number in range(CAPABILITY_COUNT)], rng.randint(minimum, maximum))


def _time_matching(queues: list[ClassQueue], agents: list[AgentCapacity], name: str) -> Run:
    times = []
    for _ in range(REPEATS):
        started_at = time.perf_counter()
        matches = match_tasks(queues, agents)
        times.append(time.perf_counter() - started_at)
    required_by_task = {task: queue.required_capabilities for queue in queues for _, task in queue.ready}
    capabilities_by_agent = {agent.agent_id: agent.capabilities for agent in agents}
    free_slots = {agent.agent_id: agent.slots - agent.held for agent in agents}
    for match in matches:
        free_slots[match.agent_id] -= 1
    if len({match.task_id for match in matches}) != len(matches) or min(free_slots.values()) < 0:
        raise BenchError(f"Matching, {name}: a task went to two agents, or an agent got more tasks than free slots.")
    if not all(required_by_task[match.task_id] <= capabilities_by_agent[match.agent_id] for match in matches):
        raise BenchError(f"Matching, {name}: a task went to an agent without the required capabilities.")
    if len(matches) < TASK_COUNT // 2 * 0.9:
        raise BenchError(f"Matching, {name}: only {len(matches)} matches were found.")
    times.sort()
    return Run(
        rate=len(matches) / percentile(times, 0.5),
        count=len(matches),
        seconds=sum(times),
        p50_ms=percentile(times, 0.5) * 1e3,
        p99_ms=percentile(times, 0.99) * 1e3,
    )
