"""Faults of agents, servers and the database while tasks run: every kind, in an order that the seed determines. Between
two faults a share of the tasks ends, or some seconds pass."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg

from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, StopMode
from tests.support.runtime import DirectDatabase
from tests.support.session_plane_attack.server_pool import ServerPool
from tests.support.work_plane_attack.agent_pool import AgentPool

RECOVERY_SECONDS = 2.0
WAIT_FOR_HOLDER_SECONDS = 3.0
Fault = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class FaultTargets:
    """What the faults hit, and the database in which their effects are observed."""

    servers: ServerPool
    agents: AgentPool
    database: DirectDatabase
    postgres: PostgresServer | None
    threshold_seconds: int
    tasks_between_faults: int
    """Tasks that end between two faults, unless RECOVERY_SECONDS pass first."""


class FaultInjector:
    def __init__(self, targets: FaultTargets, seed: str) -> None:
        self._targets = targets
        # The label is part of the seed: another label is another sequence of faults.
        self._rng = random.Random(f"{seed} disturber")
        self.counts: Counter[str] = Counter()
        self._thawing: list[asyncio.Task[None]] = []

    async def run(self, rounds: int) -> None:
        """Inject every kind of fault in each round. At the end all agents and servers run."""
        try:
            for _ in range(rounds):
                for fault in self._shuffled_faults():
                    await fault()
                    await self._wait_for_progress()
        finally:
            await asyncio.gather(*self._thawing)

    def _shuffled_faults(self) -> list[Fault]:
        faults: list[Fault] = [self.kill_agent, self.freeze_agent, self.kill_server, self.kill_agent]
        if self._targets.postgres is not None:
            faults.append(self.restart_database)
        self._rng.shuffle(faults)
        return faults

    # -- agents

    async def kill_agent(self) -> None:
        """SIGKILL an agent. Replace it by a new agent at once, or restart it under its name when it is stale."""
        slot = await self._find_working_slot()
        agents = self._targets.agents
        name = agents.slots[slot].config.agent
        agents.kill(slot)
        self.counts["killed an agent"] += 1
        if self.counts["killed an agent"] % 2:
            agents.replace(slot)
            return
        await self._wait_for_event("agent.stale", name)
        agents.replace(slot, name)

    async def freeze_agent(self) -> None:
        """SIGSTOP an agent until it is stale, while other faults happen. Then resume it until it is revived."""
        slot = await self._find_working_slot()
        agent = self._targets.agents.slots[slot]
        self._targets.agents.freeze(slot)
        self.counts["froze an agent"] += 1

        async def thaw_when_stale() -> None:
            await self._wait_for_event("agent.stale", agent.config.agent)
            # Read the position before the agent resumes: the event may be logged before the first check.
            position = await self._log_position()
            agent.thaw()
            # Give up if the agent exits right after it resumes.
            await self._wait_for_event("agent.revived", agent.config.agent, lambda: not agent.is_running, position)

        self._thawing.append(asyncio.create_task(thaw_when_stale()))

    async def _log_position(self) -> int:
        return await self._read_int("select coalesce(max(pos), 0) from events")

    async def _wait_for_event(
        self, event_type: str, name: str, give_up: Callable[[], bool] = lambda: False, after: int | None = None
    ) -> None:
        """Wait for an event after a position, or after now. The state could not tell: it may have changed again."""
        position = await self._log_position() if after is None else after
        condition = "type = ? and subject = ? and pos > ?"

        async def is_logged() -> bool:
            found = await self._read_int(f"select count(*) from events where {condition}", event_type, name, position)
            return bool(found) or give_up()

        await eventually(is_logged, f"{event_type} was logged for {name}", limit=60)

    async def _find_working_slot(self) -> int:
        """A random slot whose agent holds a task, or any running slot if none does for some seconds."""
        deadline = time.monotonic() + WAIT_FOR_HOLDER_SECONDS
        found: list[int] = []

        async def is_found() -> bool:
            rows = await self._rows("select agent_id from agent_pulses where held > 0")
            holders = {str(row[0]) for row in rows}
            agents = self._targets.agents
            found[:] = [slot for slot in agents.running_slots if agents.slots[slot].config.agent in holders]
            return bool(found) or time.monotonic() > deadline

        await eventually(is_found, "an agent holds a task")
        return self._rng.choice(found or self._targets.agents.running_slots)

    # -- servers

    async def kill_server(self) -> None:
        servers = self._targets.servers
        slot = self._rng.choice(servers.running_slots)
        servers.kill(slot)
        self.counts["killed a server"] += 1
        if len(servers) > 1:
            await self._wait_for_progress()
        await servers.restart(slot)

    async def restart_database(self) -> None:
        postgres = self._targets.postgres
        assert postgres is not None
        modes: tuple[StopMode, ...] = ("fast", "immediate")
        mode = self._rng.choice((*modes, None))
        self._targets.servers.actions.append(f"stopped PostgreSQL: {mode or 'killed'}")
        if mode is None:
            await asyncio.to_thread(postgres.kill)
        else:
            await asyncio.to_thread(postgres.stop, mode)
        await asyncio.to_thread(postgres.start)
        self.counts["restarted PostgreSQL"] += 1

    # -- observation

    async def count_ended_tasks(self) -> int:
        """The number of tasks in a final state."""
        return await self._read_int("select count(*) from agent_tasks where status = 'COMPLETED' or final = 1")

    async def _wait_for_progress(self) -> None:
        goal, deadline = (
            await self.count_ended_tasks() + self._targets.tasks_between_faults,
            time.monotonic() + RECOVERY_SECONDS,
        )

        async def has_progressed() -> bool:
            return time.monotonic() >= deadline or await self.count_ended_tasks() >= goal

        await eventually(has_progressed, "more tasks ended")

    async def _read_int(self, statement: str, *params: str | int) -> int:
        [[value]] = await self._rows(statement, *params)
        assert isinstance(value, int)
        return value

    async def _rows(self, statement: str, *params: str | int) -> list[tuple[str | int | None, ...]]:
        rows: list[tuple[str | int | None, ...]] = []

        async def is_read() -> bool:
            try:
                rows[:] = await asyncio.to_thread(self._targets.database.execute, statement, *params)
            except psycopg.OperationalError:
                return False
            return True

        await eventually(is_read, "the database can be read", limit=60)
        return rows
