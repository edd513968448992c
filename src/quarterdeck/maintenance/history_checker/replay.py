"""The log told again: who lived when, and how each invocation went from state to state.

Written from the contract and not with the rooms' own rules: a judge who counts by the same code as the accused finds
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import ENDED_STATES, Evidence, Ref, Told, told_by


@dataclass(slots=True)
class Life:
    """One session, as far as the log has come."""

    zone_id: str
    id: str
    application_id: str
    parent_id: str | None
    root_id: str
    depth: int
    expires_at: Millis
    spawned_pos: int
    ended_pos: int | None = None
    """Where it ended for everybody: its own event, or the stamp of a cascade above it."""
    settled_pos: int | None = None
    """Where its own end is told."""
    settled_at: Millis | None = None
    asleep: bool = False

    def is_live(self, at: Millis) -> bool:
        """Past its time it is gone, whether a sweep has come or not."""
        return self.ended_pos is None and self.expires_at > at


class Lives:
    """Every session the log has told of so far."""

    def __init__(self, evidence: Evidence) -> None:
        self._lives: dict[Ref, Life] = {}
        self._children: dict[Ref, list[str]] = {}
        self._live: dict[str, dict[str, None]] = {}
        """By zone, whom no end has been told of: for an ending of the whole zone."""
        if not evidence.whole:
            self._begin(evidence)

    def _begin(self, evidence: Evidence) -> None:
        """What lived before the first event that is left is known by its rows."""
        first = next(iter(evidence.log), None)
        for row in evidence.rows.sessions:
            if first is None or row.spawned_at < first.at:
                life = self._enter(
                    Life(
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
                if row.terminated_at is not None and (first is None or row.terminated_at < first.at):
                    self._end(life, 0)

    def __iter__(self) -> Iterator[Life]:
        return iter(self._lives.values())

    def get(self, zone_id: str, session_id: str | None) -> Life | None:
        return None if session_id is None else self._lives.get((zone_id, session_id))

    def feed(self, event: Event, told: Told) -> Sequence[Life]:
        """Takes an event in; who of those that lived has ended by it."""
        match event.type:
            case "session.spawn":
                if (event.zone_id, event.subject) not in self._lives:
                    self._enter(_born(event, told))
            case "session.terminate":
                return self._terminate(event)
            case "cascade.begin":
                return [self._end(life, event.pos) for life in self._reached(event)]
            case "session.suspend" | "session.resume":
                if life := self.get(event.zone_id, event.subject):
                    life.asleep = event.to_state == "suspended"
        return ()

    def _enter(self, life: Life) -> Life:
        self._lives[life.zone_id, life.id] = life
        self._live.setdefault(life.zone_id, {})[life.id] = None
        if life.parent_id is not None:
            self._children.setdefault((life.zone_id, life.parent_id), []).append(life.id)
        return life

    def _terminate(self, event: Event) -> Sequence[Life]:
        life = self.get(event.zone_id, event.subject)
        if life is None or life.settled_pos is not None:
            return ()
        life.settled_pos, life.settled_at = event.pos, event.at
        return [self._end(life, event.pos)] if life.ended_pos is None else ()

    def _end(self, life: Life, pos: int) -> Life:
        life.ended_pos = pos
        self._live.get(life.zone_id, {}).pop(life.id, None)
        return life

    def _reached(self, event: Event) -> list[Life]:
        """Whom a cascade stamps: the session it names and all that lives under it, or the whole zone."""
        top = self.get(event.zone_id, event.subject)
        if top is None:
            whole = [self.get(event.zone_id, name) for name in self._live.get(event.zone_id, ())]
            return [life for life in whole if life]
        return [life for life in self.under(top) if life.ended_pos is None]

    def under(self, top: Life) -> Iterator[Life]:
        """A session and everything under it, the dead included: below one that has ended somebody may still live."""
        pending, met = [top], {top.id}
        while pending:
            life = pending.pop()
            yield life
            for child in self.children(life):
                if child.id not in met:
                    met.add(child.id)
                    pending.append(child)

    def children(self, life: Life) -> Iterator[Life]:
        for name in self._children.get((life.zone_id, life.id), ()):
            if child := self.get(life.zone_id, name):
                yield child


def _born(event: Event, told: Told) -> Life:
    expires = told.expires
    return Life(
        event.zone_id,
        event.subject,
        told.application_id or "",
        told.parent_id,
        told.root_id or event.subject,
        told.depth,
        # One that does not say when it ends is not taken for one that has.
        2**63 if expires is None else expires,
        event.pos,
    )


def lived(evidence: Evidence) -> Lives:
    """The whole log, taken in."""
    lives = Lives(evidence)
    for event, told in reading(evidence):
        lives.feed(event, told)
    return lives


def reading(evidence: Evidence) -> Iterator[tuple[Event, Told]]:
    """Events that can be read; what cannot is for the promise about the story to tell."""
    for event in evidence.log:
        told = told_by(event)
        if told is not None:
            yield event, told


# -- invocations -------------------------------------------------------------------------------------------------

LEADS_TO = {
    "invocation.created": "pending",
    "invocation.started": "running",
    "invocation.retried": "pending",
    "invocation.released": "pending",
    "invocation.cancel_requested": "running",
    **{f"invocation.{state}": state for state in ENDED_STATES},
}
COMES_FROM: dict[str, frozenset[str | None]] = {
    "invocation.created": frozenset({None}),
    "invocation.started": frozenset({"pending"}),
    "invocation.canceled": frozenset({"pending", "running"}),
    **{
        f"invocation.{verb}": frozenset({"running"})
        for verb in ("retried", "released", "cancel_requested", "succeeded", "failed", "timed_out", "dead")
    },
}
ENDS_AN_ATTEMPT = frozenset({"invocation.retried", "invocation.released"}) | {
    f"invocation.{state}" for state in ENDED_STATES
}


@dataclass(slots=True)
class Tale:
    """One invocation, as far as the log has come."""

    state: str | None = None
    attempt: int = 0
    """The last that was begun and counted, or is under way."""
