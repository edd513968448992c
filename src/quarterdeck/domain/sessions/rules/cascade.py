"""What ends together, and in which order.

An ending takes a session and everything alive under it. What fits into one transaction is ended in it. What does not is
*stamped* in one transaction, whole: from that commit on it reads as terminated, counts nowhere and starts nothing.
Chunks then settle it in the order that the stamp laid down, children before parents, one event each.

Two endings may overlap: somebody ends a branch, then somebody else the tree. What the first has stamped is the first's
to settle, and the second waits its turn, so that in the log no parent ends before its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import Cascade, Ended, Member, Session, State, StopZone, Terminate
from quarterdeck.domain.sessions.rules.states import EXPIRED, is_live, not_found, ownership_required

Ref = tuple[str, str]
"""(zone, session)"""
Ask = Terminate | StopZone


@dataclass(frozen=True, slots=True)
class Leaving:
    """A session that ends: by whom, why, and when it ended, which for the expired was in the past."""

    member: Member
    ask: Ask
    reason: str
    ended_at: Millis


@dataclass(frozen=True, slots=True)
class Known:
    """Everything an ending may know, read under the zones' locks."""

    now: Millis
    targets: Mapping[Ref, Session]
    members: Mapping[tuple[str, str | None], Sequence[Member]]
    """By (zone, session asked for; None for the whole zone): what is alive or stamped under it, parents first."""
    open: Mapping[Ref, Cascade] = field(default_factory=dict)
    """By (zone, cascade): the endings under way."""


class Endings:
    """What a batch of asks ends: each session once, by the first ask that reaches it."""

    def __init__(self, known: Known, chunk: int) -> None:
        self._known = known
        self._chunk = chunk
        self._taken: dict[Ref, str | None] = {}
        """By what is taken: the cascade that has it, or None where this transaction settles it."""
        self.settled: list[Leaving] = []
        self.stamped: list[tuple[Cascade, list[Leaving]]] = []

    def decide(self, ask: Ask, cascade_id: str) -> Ended | Problem:
        """`cascade_id` is the name of the ending, should it become one of many transactions."""
        members = self._members(ask)
        if isinstance(ask, Terminate):
            target = self._known.targets.get((ask.zone_id, ask.session_id))
            if target is None and not ask.along:
                return not_found(ask.session_id)
            if ask.caller and target and not ask.caller.may_act_for(target.application_id, "spawn_for"):
                return ownership_required(target.application_id)
        fresh = [m for m in post_order(members) if m.terminated_at is None and _ref(m) not in self._taken]
        behind = self._behind(members)
        if not fresh:
            return self._joined(ask, behind)
        leaving = [self._leaving(member, ask) for member in fresh]
        if not behind and len(self.settled) + len(fresh) <= self._chunk:
            self.settled += leaving
            self._taken.update((_ref(member), None) for member in fresh)
            return Ended(ask.zone_id, ask.session_id, ask.reason, len(fresh))
        self._stamp(ask, cascade_id, leaving, behind)
        return Ended(ask.zone_id, ask.session_id, ask.reason, len(fresh), cascade_id)

    def _members(self, ask: Ask) -> Sequence[Member]:
        tops = (ask.session_id, *(ask.along if isinstance(ask, Terminate) else ()))
        found = [self._known.members.get((ask.zone_id, top), ()) for top in tops]
        # Of those that end together one may stand under another.
        return [*{member.id: member for group in found for member in group}.values()] if found[1:] else found[0]

    def _behind(self, members: Iterable[Member]) -> list[Cascade]:
        """The endings under way that have a part of this, the one that began last at the end."""
        if not self._known.open and not self.stamped:
            return []
        made = {(cascade.zone_id, cascade.id): cascade for cascade, _ in self.stamped}
        names = {m.cascade_id or self._taken.get(_ref(m)) for m in members}
        found = [cascade for ref, cascade in {**self._known.open, **made}.items() if ref[1] in names]
        return sorted(found, key=lambda cascade: (cascade.started_at, cascade.id))

    def _joined(self, ask: Ask, behind: Sequence[Cascade]) -> Ended:
        """Nothing is left to end: it has ended, or somebody is about to have ended it."""
        if not behind:
            return Ended(ask.zone_id, ask.session_id, ask.reason, 0)
        last = behind[-1]
        return Ended(ask.zone_id, ask.session_id, last.reason, 0, last.id, joined=True)

    def _leaving(self, member: Member, ask: Ask) -> Leaving:
        # What had expired was ended by its time, and at its time, whoever comes to say so.
        if is_live(member, self._known.now):
            return Leaving(member, ask, ask.reason, self._known.now)
        return Leaving(member, ask, EXPIRED, min(member.expires_at, self._known.now))

    def _stamp(self, ask: Ask, cascade_id: str, leaving: list[Leaving], behind: Sequence[Cascade]) -> None:
        began = max([self._known.now, *(cascade.started_at + 1 for cascade in behind)])
        cascade = Cascade(
            ask.zone_id, cascade_id, ask.session_id, ask.reason, ask.actor, ask.trace, len(leaving), 0, began, None
        )
        self.stamped.append((cascade, leaving))
        self._taken.update((_ref(each.member), cascade_id) for each in leaving)


def _ref(member: Member) -> Ref:
    return member.zone_id, member.id


def post_order(members: Sequence[Member]) -> list[Member]:
    """Trees, given parents first, as they end: depth first, each session after all of its descendants."""
    known = {member.id for member in members}
    children: dict[str | None, list[Member]] = {}
    tops = []
    for member in members:
        if member.parent_id in known:
            children.setdefault(member.parent_id, []).append(member)
        else:
            tops.append(member)
    # Parents first from the last child to the first, turned round: what recursion would give, at any depth.
    reversed_order: dict[str, Member] = {}
    _walk(tops, children, reversed_order)
    if len(reversed_order) < len(members):
        # No top leads to a circle. No spawn can close one; a hand in the database can, and it must end all the same.
        for member in members:
            _walk([member], children, reversed_order)
    return [*reversed_order.values()][::-1]


def _walk(pending: list[Member], children: Mapping[str | None, Sequence[Member]], met: dict[str, Member]) -> None:
    while pending:
        member = pending.pop()
        if member.id not in met:
            met[member.id] = member
            pending += children.get(member.id, ())


def left_over(members: Sequence[Member]) -> dict[str, str]:
    """Why each of these sessions, found after an ending that should have ended it, is still there."""
    return {
        member.id: "spawned since" if member.terminated_at is None else "stamped, and settled by a sweep soon"
        for member in members
        if member.status is not State.TERMINATED
    }
