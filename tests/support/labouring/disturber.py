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
from tests.support.keel import Side
from tests.support.labouring.crew import Crew
from tests.support.plane.fleet import Fleet
from tests.support.postgres import PostgresServer, StopMode

CALM_SECONDS = 2.0
HOLDING_SECONDS = 3.0
Disturbance = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Stage:
    """Whom it disturbs, and where it looks what they do."""

    fleet: Fleet
    crew: Crew
    side: Side
    postgres: PostgresServer | None
    threshold_seconds: int
    share: int
    """Tasks that end between two disturbances, unless time passes."""


class Disturber:
    def __init__(self, stage: Stage, seed: str) -> None:
        self._stage = stage
        self._chance = random.Random(f"{seed} disturber")
        self.times: Counter[str] = Counter()
        self._thawing: list[asyncio.Task[None]] = []

    async def run(self, rounds: int) -> None:
        """So many rounds of everything; then everybody is back and awake."""
        try:
            for _ in range(rounds):
                for disturbance in self._round():
                    await disturbance()
                    await self._calm()
        finally:
            await asyncio.gather(*self._thawing)

    def _round(self) -> list[Disturbance]:
        kinds: list[Disturbance] = [self.kill_an_agent, self.freeze_an_agent, self.kill_a_server, self.kill_an_agent]
        if self._stage.postgres is not None:
            kinds.append(self.restart_the_database)
        self._chance.shuffle(kinds)
        return kinds

    # -- agents

    async def kill_an_agent(self) -> None:
        """SIGKILL; as somebody new at once, or under its own name when it has been missed."""
        slot = await self._one_at_work()
        crew = self._stage.crew
        name = crew.slots[slot].post.agent
        crew.kill(slot)
        self.times["killed an agent"] += 1
        if self.times["killed an agent"] % 2:
            crew.replace(slot)
            return
        await self._told("agent.stale", name)
        crew.replace(slot, name)

    async def freeze_an_agent(self) -> None:
        """SIGSTOP until it has been missed, while other things happen; and then it is heard of again."""
        slot = await self._one_at_work()
        agent = self._stage.crew.slots[slot]
        self._stage.crew.freeze(slot)
        self.times["froze an agent"] += 1

        async def thawed() -> None:
            await self._told("agent.stale", agent.post.agent)
            # Looked for from before it is woken: it may be heard of sooner than anybody looks.
            asleep = await self._position()
            agent.thaw()
            # Unless it wakes up in the middle of what ends it.
            await self._told("agent.revived", agent.post.agent, lambda: not agent.runs, asleep)

        self._thawing.append(asyncio.create_task(thawed()))

    async def _position(self) -> int:
        return await self._look("select coalesce(max(pos), 0) from events")

    async def _told(
        self, kind: str, name: str, unless: Callable[[], bool] = lambda: False, after: int | None = None
    ) -> None:
        """From a position on, or from here, for whatever it may do next: how it stands may have changed once more
        already."""
        begin = await self._position() if after is None else after
        wanted = "type = ? and subject = ? and pos > ?"

        async def is_so() -> bool:
            found = await self._look(f"select count(*) from events where {wanted}", kind, name, begin)
            return bool(found) or unless()

        await eventually(is_so, f"{kind} was told of {name}", limit=60)

    async def _one_at_work(self) -> int:
        """One of those that hold something, if anybody does."""
        until = time.monotonic() + HOLDING_SECONDS
        found: list[int] = []

        async def is_found() -> bool:
            rows = await self._rows("select agent_id from agent_pulses where held > 0")
            holding = {str(row[0]) for row in rows}
            crew = self._stage.crew
            found[:] = [slot for slot in crew.awake if crew.slots[slot].post.agent in holding]
            return bool(found) or time.monotonic() > until

        await eventually(is_found, "somebody was at work")
        return self._chance.choice(found or self._stage.crew.awake)

    # -- servers

    async def kill_a_server(self) -> None:
        fleet = self._stage.fleet
        slot = self._chance.choice(fleet.awake)
        fleet.kill(slot)
        self.times["killed a server"] += 1
        if len(fleet) > 1:
            await self._calm()
        await fleet.back(slot)

    async def restart_the_database(self) -> None:
        postgres = self._stage.postgres
        assert postgres is not None
        modes: tuple[StopMode, ...] = ("fast", "immediate")
        mode = self._chance.choice((*modes, None))
        self._stage.fleet.happened.append(f"stopped PostgreSQL: {mode or 'killed'}")
        if mode is None:
            await asyncio.to_thread(postgres.kill)
        else:
            await asyncio.to_thread(postgres.stop, mode)
        await asyncio.to_thread(postgres.start)
        self.times["restarted PostgreSQL"] += 1

    # -- looking

    async def ended(self) -> int:
        """Tasks that nothing moves any more."""
        return await self._look("select count(*) from agent_tasks where status = 'COMPLETED' or final = 1")

    async def _calm(self) -> None:
        goal, at = await self.ended() + self._stage.share, time.monotonic() + CALM_SECONDS

        async def is_calm() -> bool:
            return time.monotonic() >= at or await self.ended() >= goal

        await eventually(is_calm, "the others went on")

    async def _look(self, statement: str, *params: str | int) -> int:
        [[value]] = await self._rows(statement, *params)
        assert isinstance(value, int)
        return value

    async def _rows(self, statement: str, *params: str | int) -> list[tuple[str | int | None, ...]]:
        rows: list[tuple[str | int | None, ...]] = []

        async def is_read() -> bool:
            try:
                rows[:] = await asyncio.to_thread(self._stage.side.run, statement, *params)
            except psycopg.OperationalError:
                return False
            return True

        await eventually(is_read, "the database could be read", limit=60)
        return rows
