"""Sinks: ordered delivery of events from the log to other systems, after the commit.

A sink is a name, a position and a lease. It reads the log after its position, delivers the entries of each event to its
target, and advances the position. One process at a time runs it (`engine.leader_loop`), woken by commits, and at an
interval in case a wake-up is lost.

**Position.** An entry beyond the position is still in the log. An entry up to the position has been delivered or is a
row of `sink_entries`. The two never overlap, so no entry is lost between them. The position is written at most a few
times a second, and always in the transaction that stores such a row. Markers at the target (`bus.redis`) record the
entries delivered since then, so a process that continues from an older position does not deliver them twice.

**Outages.** While the target is not reachable, the sink stays where it is: no attempts are counted, and no events are
lost, since retention stops at the lowest position of all sinks. Nothing else waits for a sink.

**Rejections.** An entry that the target rejects because of its content is stored as a row and retried with a backoff,
up to OUTBOX_MAX_ATTEMPTS times; the position advances. Later entries of the same stream and subject wait behind it, so
that a resume is never delivered before its suspend. After the last attempt the entry is dead: it is kept for
OUTBOX_RETENTION_DAYS, listed, and retried on request (`requeue`), but then out of order. A revocation never becomes
dead; it is retried forever and logged as an error.

**Creation and deletion.** A sink starts at the head of the log when it is first configured on a server. If no server
runs it for OUTBOX_RETENTION_DAYS, it is deleted with its rows, so that it does not block retention forever. While
servers run it, it is never deleted, however long the target is unreachable.

| module    | holds                                                            |
|-----------|------------------------------------------------------------------|
| admin     | reads for administrators, and the retry of dead entries          |
| model     | the rows of sinks and of their entries                           |
| retention | how far sinks still need the log; deletion of sinks and entries  |
| sink      | the work itself: read, deliver, store rejections, advance        |
"""

from quarterdeck.engine.sinks.model import ParkedEntry, SinkRow, SinkState, SinkTarget
from quarterdeck.engine.sinks.sink import Sink

__all__ = ["ParkedEntry", "Sink", "SinkRow", "SinkState", "SinkTarget"]
