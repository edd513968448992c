"""A sink without a server: on a keel, with an outlet of its own, one turn after another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.client import connect
from quarterdeck.bus.redis.interfaces import BusUnavailable, RejectedEntry, SinkEntry, WriterIdentity
from quarterdeck.bus.redis.streams_writer import RedisStreamWriter
from quarterdeck.core.ids import new_id
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import Sink, SinkTarget
from quarterdeck.engine.transaction import Transaction
from tests.support.asking import LEADS_TO, ZONE
from tests.support.keel import Keel

NAME = "redis-streams"
KEY = b"a key that is long enough"


async def nothing() -> None:
    return None


@dataclass
class Gate:
    """An outlet through another one, with something done before and after each delivery: waiting, or failing."""

    outlet: RedisStreamWriter
    before: Callable[[], Awaitable[None]] = nothing
    after: Callable[[], Awaitable[None]] = nothing

    async def take_over(self, identity: WriterIdentity) -> None:
        await self.outlet.take_over(identity)

    async def deliver(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> list[RejectedEntry]:
        await self.before()
        rejected = await self.outlet.deliver(identity, after, entries)
        await self.after()
        return rejected

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        await self.before()
        answers = await self.outlet.deliver_delayed(identity, entries)
        await self.after()
        return answers

    async def close(self) -> None:
        await self.outlet.close()


async def away() -> None:
    raise BusUnavailable("the connection was cut")


@dataclass
class Runner:
    """One process's share of the sink."""

    keel: Keel
    url: str
    settings: SinkSettings = field(default_factory=SinkSettings)

    def __post_init__(self) -> None:
        self.gate = Gate(RedisStreamWriter(connect(self.url), KEY))
        channel = SinkTarget(self.gate, stream_entries.build_entries, stream_entries.REVOCATIONS.__eq__)
        self.sink = Sink(self.keel.everywhere, NAME, channel, self.settings)
        self.lease = Lease(self.keel.everywhere, NAME, new_id(), 5_000)

    async def fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "somebody else holds the lease"
        return fence

    async def turn(self) -> float | None:
        return await self.sink.run_cycle(await self.fence())

    async def run(self) -> None:
        """Until there is nothing more to do at once. The position may not have been written."""
        while await self.turn() == 0:
            pass

    async def take_over(self) -> None:
        """As another process does when the lease of whoever held it has run out."""
        self.keel.side.run("update leases set expires_at = 0 where name = ?", NAME)
        assert await self.lease.acquire()

    async def stop(self) -> None:
        await self.sink.on_stop(self.lease.fence())

    async def drop(self) -> None:
        """As a process that is killed: nothing is written down."""
        await self.gate.close()


def due(keel: Keel) -> None:
    """Lets whatever waits be due."""
    keel.side.run("update sink_entries set next_at = 0 where dead_at is null")


async def happen(keel: Keel, *kinds: tuple[str, str]) -> None:
    """Events of these types about these subjects, in one transaction."""

    async def operation(tx: Transaction) -> None:
        await tx.read()
        for kind, subject in kinds:
            data = {"reason": "x", "session_sid": f"sid of {subject}", "n": new_id()}
            text, state = msgspec.json.encode(data).decode(), LEADS_TO.get(kind)
            tx.emit(NewEvent(kind, ZONE, subject, "tester", to_state=state, data=text))

    await keel.engine.transact(operation, zones=[ZONE])
