"""The pure part of the coordinator's cycle: which of ten thousand tasks goes to which of a thousand agents."""

from __future__ import annotations

import random
import time

from bench.plan import BenchError
from bench.results import Figure, Findings, Line, Run
from bench.stage import Stage
from bench.wire import percentile
from quarterdeck.domain.coordination.rules.matching import AgentCapacity, ClassQueue, match_tasks

TASKS, SETS, AGENTS = 10_000, 50, 1_000
MOST_MS = 300.0
CAPABILITIES = 20
TIMES = 9
ROOMY, TIGHT = "room for all", "room for half"


def measure(stage: Stage) -> Findings:
    cases = {ROOMY: 10, TIGHT: 5}
    runs: dict[str, list[Run]] = {}
    for number in range(stage.plan.rounds):
        chance = random.Random(number)
        for name, slots in cases.items():
            runs.setdefault(name, []).append(_timed(_queues(chance), _seats(chance, slots), name))
    return Findings(
        f"Matching {TASKS:,} tasks of {SETS} capability sets to {AGENTS:,} agents",
        lines=[Line(f"matching, {name}", found) for name, found in runs.items()],
        figures=[
            Figure(f"Matching, {name}", [run.p50_ms or 0.0 for run in found], "ms", MOST_MS, at_most=True)
            for name, found in runs.items()
        ],
        notes=[
            f"Each set asks for one to four of {CAPABILITIES} capabilities, and each agent has eight to all of them; "
            "which, is drawn anew in each round. Agents hold some tasks already. The median of "
            f"{TIMES} times in each round; each match must be of a task and an agent that suits it, within its slots.",
        ],
    )  # fmt: skip


def _queues(chance: random.Random) -> list[ClassQueue]:
    turns = list(range(TASKS))
    chance.shuffle(turns)
    queues = []
    for number in range(SETS):
        waiting = sorted((turn, f"task-{turn:05d}") for turn in turns[number::SETS])
        queues.append(ClassQueue(frozenset(_some(chance, 1, 4)), waiting))
    return queues


def _seats(chance: random.Random, slots: int) -> list[AgentCapacity]:
    """With so many slots free and some taken; one agent in fifty can do everything, so that no set has nobody."""
    seats = []
    for number in range(AGENTS):
        held = chance.randrange(3)
        can = _some(chance, 8, CAPABILITIES) if number % 50 else range(CAPABILITIES)
        seats.append(AgentCapacity(f"agent-{number:04d}", frozenset(map(str, can)), slots + held, held))
    return seats


def _some(chance: random.Random, least: int, most: int) -> list[str]:
    return chance.sample([str(each) for each in range(CAPABILITIES)], chance.randint(least, most))


def _timed(queues: list[ClassQueue], seats: list[AgentCapacity], name: str) -> Run:
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        matches = match_tasks(queues, seats)
        took.append(time.perf_counter() - began)
    wanted = {task: queue.required_capabilities for queue in queues for _, task in queue.ready}
    has = {seat.agent_id: seat.capabilities for seat in seats}
    room = {seat.agent_id: seat.slots - seat.held for seat in seats}
    for match in matches:
        room[match.agent_id] -= 1
    if len({match.task_id for match in matches}) != len(matches) or min(room.values()) < 0:
        raise BenchError(f"Matching, {name}: a task went to two agents, or an agent got more than it can hold.")
    if not all(wanted[match.task_id] <= has[match.agent_id] for match in matches):
        raise BenchError(f"Matching, {name}: a task went to an agent that cannot do it.")
    if len(matches) < TASKS // 2 * 0.9:
        raise BenchError(f"Matching, {name}: only {len(matches)} matches were made.")
    took.sort()
    return Run(
        rate=len(matches) / percentile(took, 0.5),
        count=len(matches),
        seconds=sum(took),
        p50_ms=percentile(took, 0.5) * 1e3,
        p99_ms=percentile(took, 0.99) * 1e3,
    )
