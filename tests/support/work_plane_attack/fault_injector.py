"""What happens to agents, servers and the database while there is work: everything now and then, in an order that the
seed gives. Between two disturbances a share of the tasks ends, or some seconds pass."""

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
    """Whom it disturbs, and where it looks what they do."""

    servers: ServerPool
    agents: AgentPool
    side: DirectDatabase
    postgres: PostgresServer | None
    threshold_seconds: int
    tasks_between_faults: int
    """Tasks that end between two disturbances, unless time passes."""


class FaultInjector:
    def __init__(self, targets: FaultTargets, seed: str) -> None:
        self._targets = targets
        self._rng = random.Random(f"{seed} disturber")
        self.counts: Counter[str] = Counter()
        self._thawing: list[asyncio.Task[None]] = []

    async def run(self, rounds: int) -> None:
        """So many rounds of everything; then everybody is back and awake."""
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
        """SIGKILL; as somebody new at once, or under its own name when it has been missed."""
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
        """SIGSTOP until it has been missed, while other things happen; and then it is heard of again."""
        slot = await self._find_working_slot()
        agent = self._targets.agents.slots[slot]
        self._targets.agents.freeze(slot)
        self.counts["froze an agent"] += 1

        async def thaw_when_stale() -> None:
            await self._wait_for_event("agent.stale", agent.config.agent)
            # Looked for from before it is woken: it may be heard of sooner than anybody looks.
            position = await self._log_position()
            agent.thaw()
            # Unless it wakes up in the middle of what ends it.
            await self._wait_for_event("agent.revived", agent.config.agent, lambda: not agent.is_running, position)

        self._thawing.append(asyncio.create_task(thaw_when_stale()))

    async def _log_position(self) -> int:
        return await self._read_int("select coalesce(max(pos), 0) from events")

    async def _wait_for_event(
        self, event_type: str, name: str, give_up: Callable[[], bool] = lambda: False, after: int | None = None
    ) -> None:
        """From a position on, or from here, for whatever it may do next: how it stands may have changed once more
        already."""
        position = await self._log_position() if after is None else after
        condition = "type = ? and subject = ? and pos > ?"

        async def is_logged() -> bool:
            found = await self._read_int(f"select count(*) from events where {condition}", event_type, name, position)
            return bool(found) or give_up()

        await eventually(is_logged, f"{event_type} was told of {name}", limit=60)

    async def _find_working_slot(self) -> int:
        """One of those that hold something, if anybody does."""
        deadline = time.monotonic() + WAIT_FOR_HOLDER_SECONDS
        found: list[int] = []

        async def is_found() -> bool:
            rows = await self._rows("select agent_id from agent_pulses where held > 0")
            holders = {str(row[0]) for row in rows}
            agents = self._targets.agents
            found[:] = [slot for slot in agents.running_slots if agents.slots[slot].config.agent in holders]
            return bool(found) or time.monotonic() > deadline

        await eventually(is_found, "somebody was at work")
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

    # -- looking

    async def count_ended_tasks(self) -> int:
        """Tasks that nothing moves any more."""
        return await self._read_int("select count(*) from agent_tasks where status = 'COMPLETED' or final = 1")

    async def _wait_for_progress(self) -> None:
        goal, deadline = (
            await self.count_ended_tasks() + self._targets.tasks_between_faults,
            time.monotonic() + RECOVERY_SECONDS,
        )

        async def has_progressed() -> bool:
            return time.monotonic() >= deadline or await self.count_ended_tasks() >= goal

        await eventually(has_progressed, "the others went on")

    async def _read_int(self, statement: str, *params: str | int) -> int:
        [[value]] = await self._rows(statement, *params)
        assert isinstance(value, int)
        return value

    async def _rows(self, statement: str, *params: str | int) -> list[tuple[str | int | None, ...]]:
        rows: list[tuple[str | int | None, ...]] = []

        async def is_read() -> bool:
            try:
                rows[:] = await asyncio.to_thread(self._targets.side.execute, statement, *params)
            except psycopg.OperationalError:
                return False
            return True

        await eventually(is_read, "the database could be read", limit=60)
        return rows
