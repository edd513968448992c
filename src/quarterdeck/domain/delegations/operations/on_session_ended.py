"""What goes with sessions that end. It is heard in the transaction of the ending, so no edge outlasts its sessions."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.domain.delegations.model import EdgeVerb, Link
from quarterdeck.domain.delegations.operations.end_edges import Leaving, end, load_zones, standings_of
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import WITH_SESSION
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

ENDED = "session.terminate"


async def go_with_session(tx: Tx, events: Sequence[NewEvent]) -> None:
    """Revokes the edges from and to sessions that have ended, and all that are derived from them. Nobody else ends by
    it: that is for whoever revokes an edge."""
    ended = {(event.zone_id, event.subject): event for event in events if event.type == ENDED}
    if not ended:
        return
    rows, zone_rows = await tx.read(
        Q.delegations_of_sessions(batch=[*sorted(ended)]), load_zones(zone_id for zone_id, _ in ended)
    )
    standings = standings_of(zone_rows)
    if ranked := [ref for ref in sorted(ended) if standings[ref[0]].lowest is not None]:
        tx.write(Q.delegation_ranks_drop(batch=[*ranked]))
    # Past its time is over already, by another name: that is for the sweep to write down.
    links = [link for link in decode(rows, Link) if link.expires_at > tx.now]
    if not links:
        return
    by_zone = {event.zone_id: event for event in reversed(ended.values())}
    leaving = []
    for link in links:
        refs = [(link.zone_id, link.source_session_id), (link.zone_id, link.target_session_id)]
        # One that is derived has neither end among these; any ending of its zone in this transaction has its actor.
        cause = next((ended[ref] for ref in refs if ref in ended), by_zone[link.zone_id])
        leaving.append(Leaving(link, EdgeVerb.REVOKE, WITH_SESSION, cause.actor, tx.now, cause.trace))
    await end(tx, leaving, standings)
