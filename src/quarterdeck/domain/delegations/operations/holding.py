"""Which edges are hollow: somebody who lent along their line has ended, and the ending is still to be settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quarterdeck.domain.delegations.rules import Ref
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef, State
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import Row


async def sessions_as_read(tx: Tx, refs: Iterable[Ref]) -> dict[Ref, Session]:
    """Those of these sessions that there are, as they read now."""
    asked = [SessionRef(zone_id, session_id) for zone_id, session_id in sorted(set(refs))]
    found = await sessions.show(tx, asked) if asked else []
    return {(session.zone_id, session.id): session for session in found if isinstance(session, Session)}


def lenders(rows: Sequence[Row]) -> dict[Ref, list[Ref]]:
    """By edge: the sessions that lent along its line."""
    found: dict[Ref, list[Ref]] = {}
    for zone_id, holder, lender in rows:
        found.setdefault((str(zone_id), str(holder)), []).append((str(zone_id), str(lender)))
    return found


def hollow(lines: dict[Ref, list[Ref]], known: dict[Ref, Session]) -> set[Ref]:
    """The edges of which a lender is not live. One whose row is gone has ended long ago."""
    live = {ref for ref, session in known.items() if session.status is not State.TERMINATED}
    return {edge for edge, line in lines.items() if not live.issuperset(line)}
