"""Sinks: what is told to other systems, from the log, after the commit.

A sink is a name, a position and a lease. It reads the log after its position, has each event's entries delivered by
its outlet, and moves on. One process at a time runs it (`engine.duties`): woken by commits, with an interval as the
net.

**Positions.** Beyond the position an entry is the log's business; up to it, it has been delivered, or is a row of
`sink_entries`. The two never overlap, so an entry is never forgotten between them. The position is written a few
times a second at most, and at once where a row is: what was delivered since is known to the outlet's markers
(`bus.redis`), and is not delivered twice by whoever goes on from an older position.

**Outages.** While the other side is away the sink stands where it is, and costs nobody anything: no attempts are
counted, no events are lost, since retention stops before the lowest position. Nothing else waits for a sink.

**Refusals.** An entry that the other side refuses for what it is, is written down and tried again with growing
pauses, up to OUTBOX_MAX_ATTEMPTS; the position goes on. Whatever comes later on the same stream for the same subject
waits behind it, so that nobody hears of a resume before its suspend. One that was tried often enough is dead: kept
for OUTBOX_RETENTION_DAYS, shown, and tried again when somebody says so (`requeue`), at the price of its place in the
order. A revocation is never dead; it is tried for ever, and alerts.

**Beginnings and ends.** A sink begins at the head of the log when a server is first told of it. One that no server
has run for OUTBOX_RETENTION_DAYS is forgotten with its rows, so that it does not keep events from being removed for
ever. While its servers run it is never forgotten, however long the other side is away.

| module    | what it has                                                      |
|-----------|------------------------------------------------------------------|
| model     | a sink's row, and the rows of what waits                          |
| sink      | the work itself: read, deliver, write down, move on               |
| looking   | how sinks are shown, and what was given up is tried again          |
| retention | how far sinks still need the log; what is forgotten               |
"""

from quarterdeck.engine.sinks.model import ParkedEntry, SinkRow, SinkState, SinkTarget
from quarterdeck.engine.sinks.sink import Sink

__all__ = ["ParkedEntry", "Sink", "SinkRow", "SinkState", "SinkTarget"]
