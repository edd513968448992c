"""Replays the event log: which sessions are live at each position.

It implements the documentation and does not use the components' own rules, because code that shares their bugs could
not find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, decode_event_data


@dataclass(slots=True)
class ReplayedSession:
    """One session at the current position of the replay."""

    zone_id: str
    id: str
    application_id: str
    parent_id: str | None
    root_id: str
    depth: int
    expires_at: Millis
    spawned_pos: int
    ended_pos: int | None = None
    """The position at which it ended: its own termination event, or the start of a cascade that includes it."""
    terminated_pos: int | None = None
    """The position of its own termination event."""
    terminated_at: Millis | None = None
    is_suspended: bool = False

    def is_live(self, now: Millis) -> bool:
        """An expired session is not live, even before a sweep ends it."""
        return self.ended_pos is None and self.expires_at > now


class SessionReplay:
    """All sessions up to the current position of the replay."""

    def __init__(self, evidence: Evidence) -> None:
        self._sessions: dict[Ref, ReplayedSession] = {}
        self._children: dict[Ref, list[str]] = {}
        self._live_ids: dict[str, dict[str, None]] = {}
        """By zone, the ids of the sessions that have not ended. A cascade over a whole zone ends them all."""
        self._marked_ids: dict[Ref, list[str]] = {}
        """By cascade, the ids of the sessions that it marked."""
        for row in evidence.rows.marked_sessions:
            self._marked_ids.setdefault((row.zone_id, row.cascade_id), []).append(row.id)
        if not evidence.is_log_complete:
            self._load_earlier_sessions(evidence)

    def _load_earlier_sessions(self, evidence: Evidence) -> None:
        """Add the sessions that were spawned before the oldest stored event, from their rows."""
        oldest = next(iter(evidence.log), None)
        for row in evidence.rows.sessions:
            if oldest is None or row.spawned_at < oldest.at:
                session = self._add(
                    ReplayedSession(
                        row.zone_id,
                        row.id,
                        row.application_id,
                        row.parent_id,
                        row.root_id,
                        row.depth,
                        row.expires_at,
                        0,
                    )
                )
                if row.terminated_at is not None and (oldest is None or row.terminated_at < oldest.at):
                    self._mark_ended(session, 0)

    def __iter__(self) -> Iterator[ReplayedSession]:
        return iter(self._sessions.values())

    def get(self, zone_id: str, session_id: str | None) -> ReplayedSession | None:
        return None if session_id is None else self._sessions.get((zone_id, session_id))

    def apply(self, event: Event, data: EventData) -> Sequence[ReplayedSession]:
        """Apply an event. Returns the live sessions that it ended."""
        match event.type:
            case "session.spawn":
                if (event.zone_id, event.subject) not in self._sessions:
                    self._add(_spawned_session(event, data))
            case "session.terminate":
                return self._terminate(event)
            case "cascade.begin":
                return [self._mark_ended(session, event.pos) for session in self._cascade_targets(event, data)]
            case "session.suspend" | "session.resume":
                if session := self.get(event.zone_id, event.subject):
                    session.is_suspended = event.to_state == "suspended"
        return ()

    def _add(self, session: ReplayedSession) -> ReplayedSession:
        self._sessions[session.zone_id, session.id] = session
        self._live_ids.setdefault(session.zone_id, {})[session.id] = None
        if session.parent_id is not None:
            self._children.setdefault((session.zone_id, session.parent_id), []).append(session.id)
        return session

    def _terminate(self, event: Event) -> Sequence[ReplayedSession]:
        session = self.get(event.zone_id, event.subject)
        if session is None or session.terminated_pos is not None:
            return ()
        session.terminated_pos, session.terminated_at = event.pos, event.at
        return [self._mark_ended(session, event.pos)] if session.ended_pos is None else ()

    def _mark_ended(self, session: ReplayedSession, pos: int) -> ReplayedSession:
        session.ended_pos = pos
        self._live_ids.get(session.zone_id, {}).pop(session.id, None)
        return session

    def _cascade_targets(self, event: Event, data: EventData) -> list[ReplayedSession]:
        """The live sessions that a cascade ends: the named session, its descendants, and any other session that the
        cascade marked. If the event names no session, the cascade ends all live sessions in the zone."""
        zone_id, root = event.zone_id, self.get(event.zone_id, event.subject)
        if root is None:
            targets = [self.get(zone_id, session_id) for session_id in self._live_ids.get(zone_id, ())]
        else:
            # Revoking a delegation may end several trees in one cascade. The event names only the first tree.
            marked_ids = self._marked_ids.get((zone_id, data.cascade_id or ""), ())
            targets = [*self.subtree(root), *(self.get(zone_id, session_id) for session_id in marked_ids)]
        live_targets = {session.id: session for session in targets if session and session.ended_pos is None}
        return [*live_targets.values()]

    def subtree(self, root: ReplayedSession) -> Iterator[ReplayedSession]:
        """A session and all its descendants, including ended ones: an ended session may have live descendants."""
        stack, seen = [root], {root.id}
        while stack:
            session = stack.pop()
            yield session
            for child in self.children(session):
                if child.id not in seen:
                    seen.add(child.id)
                    stack.append(child)

    def children(self, session: ReplayedSession) -> Iterator[ReplayedSession]:
        for child_id in self._children.get((session.zone_id, session.id), ()):
            if child := self.get(session.zone_id, child_id):
                yield child


def _spawned_session(event: Event, data: EventData) -> ReplayedSession:
    expires_at = data.expires_at_ms
    return ReplayedSession(
        event.zone_id,
        event.subject,
        data.application_id or "",
        data.parent_id,
        data.root_id or event.subject,
        data.depth,
        # A session without an expiry never expires.
        2**63 if expires_at is None else expires_at,
        event.pos,
    )


def replay_sessions(evidence: Evidence) -> SessionReplay:
    """The sessions after a replay of the complete event log."""
    sessions = SessionReplay(evidence)
    for event, data in readable_events(evidence):
        sessions.apply(event, data)
    return sessions


def readable_events(evidence: Evidence) -> Iterator[tuple[Event, EventData]]:
    """The events with valid data. The invariant `story` reports malformed data."""
    for event in evidence.log:
        data = decode_event_data(event)
        if data is not None:
            yield event, data
