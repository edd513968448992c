"""A harness for a sink: tests run its cycles one by one, without a server."""

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
from tests.support.builders import STATE_AFTER_EVENT, ZONE
from tests.support.runtime import RuntimeHarness

SINK_NAME = "redis-streams"
HMAC_KEY = b"a key that is long enough"


async def no_op() -> None:
    return None


@dataclass
class GatedWriter:
    """A stream writer that wraps another. A test can wait or fail before and after each delivery."""

    writer: RedisStreamWriter
    before: Callable[[], Awaitable[None]] = no_op
    after: Callable[[], Awaitable[None]] = no_op

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        await self.writer.fence_older_terms(identity)

    async def deliver(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> list[RejectedEntry]:
        await self.before()
        rejected = await self.writer.deliver(identity, after_pos, entries)
        await self.after()
        return rejected

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        await self.before()
        responses = await self.writer.deliver_delayed(identity, entries)
        await self.after()
        return responses

    async def close(self) -> None:
        await self.writer.close()


async def raise_unavailable() -> None:
    raise BusUnavailable("the connection was cut")


@dataclass
class SinkHarness:
    """The sink of one process."""

    runtime: RuntimeHarness
    url: str
    settings: SinkSettings = field(default_factory=SinkSettings)

    def __post_init__(self) -> None:
        self.gate = GatedWriter(RedisStreamWriter(connect(self.url), HMAC_KEY))
        target = SinkTarget(self.gate, stream_entries.build_entries, stream_entries.REVOCATIONS.__eq__)
        self.sink = Sink(self.runtime.cross_zone_engine, SINK_NAME, target, self.settings)
        self.lease = Lease(self.runtime.cross_zone_engine, SINK_NAME, new_id(), 5_000)

    async def get_fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "another process holds the lease"
        return fence

    async def run_cycle(self) -> float | None:
        return await self.sink.run_cycle(await self.get_fence())

    async def run_until_idle(self) -> None:
        """Run cycles until nothing is due. The position may not be stored yet."""
        while await self.run_cycle() == 0:
            pass

    async def take_over(self) -> None:
        """Expire the lease and acquire it, as another process would."""
        self.runtime.database.execute("update leases set expires_at = 0 where name = ?", SINK_NAME)
        assert await self.lease.acquire()

    async def stop(self) -> None:
        await self.sink.on_stop(self.lease.fence())

    async def close(self) -> None:
        """Close without storing the position, as if the process was killed."""
        await self.gate.close()


def make_entries_due(runtime: RuntimeHarness) -> None:
    """Make all waiting entries due."""
    runtime.database.execute("update sink_entries set next_at = 0 where dead_at is null")


async def emit(runtime: RuntimeHarness, *events: tuple[str, str]) -> None:
    """Emit events of these types and subjects in one transaction."""

    async def operation(tx: Transaction) -> None:
        await tx.read()
        for event_type, subject in events:
            data = {"reason": "x", "session_sid": f"sid of {subject}", "n": new_id()}
            text, state = msgspec.json.encode(data).decode(), STATE_AFTER_EVENT.get(event_type)
            tx.emit(NewEvent(event_type, ZONE, subject, "tester", to_state=state, data=text))

    await runtime.engine.transact(operation, zones=[ZONE])


NewSink = Callable[..., SinkHarness]
