"""A day of a sink and of slots, without Redis: the other side takes some entries, refuses others, and says nothing."""

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
from tests.support.keel import Keel
from tests.support.sinking import happen

NAME = "a-sink"


class Choosy:
    """Refuses what is about one subject, however often it comes."""

    async def take_over(self, identity: WriterIdentity) -> None:
        assert await identity.checks.holds_lease()
        assert not await identity.checks.has_event(Marker(1, "nothing"))

    async def deliver(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> list[RejectedEntry]:
        first = {entry.stream: entry for entry in reversed(entries) if entry.subject == "refused"}
        return [RejectedEntry(entry, "ERR no") for entry in first.values()]

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        return ["ERR no" if entry.subject == "refused" else None for entry in entries]

    async def close(self) -> None: ...


class Blank:
    """A board on which nothing stays."""

    async def write(self, slots: Sequence[SlotCounter]) -> int:
        return len(slots)

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        return [StoredSlotCounter(None, None) for _ in zone_ids]

    async def close(self) -> None: ...


async def telling(keel: Keel) -> None:
    """Everything that may become of an entry; in the end the sink is forgotten, so that it holds no events back."""
    everywhere = keel.everywhere
    channel = SinkTarget(Choosy(), stream_entries.build_entries, stream_entries.REVOCATIONS.__eq__)
    sink = Sink(everywhere, NAME, channel, SinkSettings(outbox_max_attempts=2))
    await sink.register()
    lease = Lease(everywhere, NAME, new_id(), 60_000)
    for _ in range(3):
        await happen(keel, ("session.spawn", "refused"), ("session.spawn", "taken"), ("session.end", "x"))
        keel.side.run("update sink_entries set next_at = 0")
        assert await sink.is_due()
        fence = await lease.acquire()
        assert fence
        while await sink.run_cycle(fence) == 0:
            pass
    for name in await everywhere.read(admin.list_names):
        await everywhere.read(partial(admin.load_view, name=name))
        await everywhere.read(partial(admin.load_entries, name=name))
    await everywhere.transact(lambda tx: admin.requeue(tx, NAME, 1))
    # Whatever is there is older than a window that ends tomorrow.
    await SinkRetention(everywhere, -1, 1).run_once(10)
    await lease.release()
    counts = SlotCounts(Limits())
    await SlotReconciler(everywhere, counts, Blank(), 1).run_once(500)
    await SlotMirror(everywhere, counts, Blank()).write_changed()
