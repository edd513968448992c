"""A day of a sink and of slots, without Redis: the other side takes some entries, refuses others, and says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.interfaces import Entry, Hold, Marker, Rejected, Shown, Slot
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions.operations import SlotCounts
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.mirrors.slots import Reconciler, SlotKeeper
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import Channel, Sink, admin
from quarterdeck.engine.sinks.retention import SinkRetention
from tests.support.keel import Keel
from tests.support.sinking import happen

NAME = "a-sink"


class Choosy:
    """Refuses what is about one subject, however often it comes."""

    async def take_over(self, hold: Hold) -> None:
        assert await hold.judge.holds()
        assert not await hold.judge.has(Marker(1, "nothing"))

    async def deliver(self, hold: Hold, after: int, entries: Sequence[Entry]) -> list[Rejected]:
        first = {entry.stream: entry for entry in reversed(entries) if entry.subject == "refused"}
        return [Rejected(entry, "ERR no") for entry in first.values()]

    async def deliver_late(self, hold: Hold, entries: Sequence[Entry]) -> list[str | None]:
        return ["ERR no" if entry.subject == "refused" else None for entry in entries]

    async def close(self) -> None: ...


class Blank:
    """A board on which nothing stays."""

    async def write(self, slots: Sequence[Slot]) -> int:
        return len(slots)

    async def read(self, zone_ids: Sequence[str]) -> list[Shown]:
        return [Shown(None, None) for _ in zone_ids]

    async def close(self) -> None: ...


async def telling(keel: Keel) -> None:
    """Everything that may become of an entry; in the end the sink is forgotten, so that it holds no events back."""
    everywhere = keel.everywhere
    channel = Channel(Choosy(), stream_entries.entries_of, stream_entries.REVOCATIONS.__eq__)
    sink = Sink(everywhere, NAME, channel, SinkSettings(outbox_max_attempts=2))
    await sink.begin()
    lease = Lease(everywhere, NAME, new_id(), 60_000)
    for _ in range(3):
        await happen(keel, ("session.spawn", "refused"), ("session.spawn", "taken"), ("session.end", "x"))
        keel.side.run("update sink_entries set next_at = 0")
        assert await sink.is_due()
        fence = await lease.hold()
        assert fence
        while await sink.turn(fence) == 0:
            pass
    for name in await everywhere.read(admin.names):
        await everywhere.read(partial(admin.view, name=name))
        await everywhere.read(partial(admin.entries, name=name))
    await everywhere.transact(lambda tx: admin.requeue(tx, NAME, 1))
    # Whatever is there is older than a window that ends tomorrow.
    await SinkRetention(everywhere, -1, 1).run_once(10)
    await lease.release()
    counts = SlotCounts(Limits())
    await Reconciler(everywhere, counts, Blank(), 1).run_once(500)
    await SlotKeeper(everywhere, counts, Blank()).write_touched()
