"""Every statement of sinks and of the slot mirror, without Redis: the writer rejects some entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.interfaces import (
    Marker,
    RejectedEntry,
    SinkEntry,
    SlotCounter,
    StoredSlotCounter,
    WriterIdentity,
)
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.mirrors.slots import SlotMirror, SlotReconciler
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import Sink, SinkTarget, admin
from quarterdeck.engine.sinks.retention import SinkRetention
from tests.support.runtime import RuntimeHarness
from tests.support.sink import emit

SINK_NAME = "a-sink"


class RejectingWriter:
    """Rejects every entry about the subject `refused`."""

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        assert await identity.checks.holds_lease()
        assert not await identity.checks.has_event(Marker(1, "nothing"))

    async def deliver(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> list[RejectedEntry]:
        first = {entry.stream: entry for entry in reversed(entries) if entry.subject == "refused"}
        return [RejectedEntry(entry, "ERR no") for entry in first.values()]

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        return ["ERR no" if entry.subject == "refused" else None for entry in entries]

    async def close(self) -> None: ...


class DiscardingSlotWriter:
    """A slot writer that stores nothing."""

    async def write(self, slots: Sequence[SlotCounter]) -> int:
        return len(slots)

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        return [StoredSlotCounter(None, None) for _ in zone_ids]

    async def close(self) -> None: ...


async def run_sink_workload(runtime: RuntimeHarness) -> None:
    """Run every outcome of an entry. At the end the sink is deleted, so that it does not hold back event retention."""
    cross_zone_engine = runtime.cross_zone_engine
    target = SinkTarget(RejectingWriter(), stream_entries.build_entries, stream_entries.REVOCATIONS.__eq__)
    sink = Sink(cross_zone_engine, SINK_NAME, target, SinkSettings(outbox_max_attempts=2))
    await sink.register()
    lease = Lease(cross_zone_engine, SINK_NAME, new_id(), 60_000)
    for _ in range(3):
        await emit(runtime, ("session.spawn", "refused"), ("session.spawn", "accepted"), ("session.end", "x"))
        runtime.database.execute("update sink_entries set next_at = 0")
        assert await sink.is_due()
        fence = await lease.acquire()
        assert fence
        while await sink.run_cycle(fence) == 0:
            pass
    for name in await cross_zone_engine.read(admin.list_names):
        await cross_zone_engine.read(partial(admin.load_view, name=name))
        await cross_zone_engine.read(partial(admin.load_entries, name=name))
    await cross_zone_engine.transact(lambda tx: admin.requeue(tx, SINK_NAME, 1))
    # A negative retention deletes every row: the window ends tomorrow.
    await SinkRetention(cross_zone_engine, -1, 1).run_once(10)
    await lease.release()
    counts = SlotCounts(Limits())
    await SlotReconciler(cross_zone_engine, counts, DiscardingSlotWriter(), 1).run_once(500)
    await SlotMirror(cross_zone_engine, counts, DiscardingSlotWriter()).write_changed()
