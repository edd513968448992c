"""Who sleeps. A suspension is a flag on the session named; a session sleeps while it or an ancestor bears one.

So suspending a branch and then its tree, and resuming the tree, leaves the branch asleep, in whatever order the two
are done and undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Moved, Problem
from quarterdeck.domain.sessions.model import Hold, Member, State, Verb
from quarterdeck.domain.sessions.rules.cascade import Ref
from quarterdeck.domain.sessions.rules.states import SESSION, is_live


class Move(msgspec.Struct, frozen=True):
    """One session before and after. The one that was named is told of even where only its flag has moved."""

    before: Member
    after: Member


class Grove:
    """The sessions that a batch of suspensions and resumptions is about, with all their ancestors, as they change."""

    def __init__(self, members: Iterable[Member], now: Millis) -> None:
        self._now = now
        self._members: dict[Ref, Member] = {(m.zone_id, m.id): m for m in members}
        self._children: dict[Ref, list[Ref]] = {}
        for ref, member in self._members.items():
            if member.parent_id is not None:
                self._children.setdefault((member.zone_id, member.parent_id), []).append(ref)

    def decide(self, ask: Hold) -> list[Move] | Problem:
        return self._suspend(ask) if ask.verb is Verb.SUSPEND else self._resume(ask)

    def _suspend(self, ask: Hold) -> list[Move] | Problem:
        target = self._live(ask)
        if target is None:
            return Moved(
                "agent_not_found_or_not_active",
                f"The session {ask.session_id!r} has ended; nothing is there to suspend.",
            )
        reached = [target, *self._below(target)]
        return self._moved(target, 1, [m for m in reached if m.status is State.ACTIVE], Verb.SUSPEND)

    def _resume(self, ask: Hold) -> list[Move] | Problem:
        target = self._live(ask)
        if target is None or not target.held:
            holder = self.holder_of(target) if target else None
            return not_suspended(ask.session_id, target, holder)
        if self.holder_of(target) is not None:
            return self._moved(target, 0, [], Verb.RESUME)
        reached = [target, *self._below(target, stops_at_flags=True)]
        return self._moved(target, 0, [m for m in reached if m.status is State.SUSPENDED], Verb.RESUME)

    def holder_of(self, member: Member) -> Member | None:
        """The nearest ancestor that bears a flag."""
        return next((ancestor for ancestor in self._line(member) if ancestor.held), None)

    def _live(self, ask: Hold) -> Member | None:
        member = self._members.get((ask.zone_id, ask.session_id))
        return member if member is not None and is_live(member, self._now) else None

    def _line(self, member: Member) -> Iterator[Member]:
        # No spawn can make a line that meets itself; a hand in the database can, and must not hang the server.
        met: set[Ref] = {(member.zone_id, member.id)}
        while member.parent_id is not None and (ref := (member.zone_id, member.parent_id)) not in met:
            met.add(ref)
            parent = self._members.get(ref)
            if parent is None:
                return
            yield parent
            member = parent

    def _below(self, top: Member, *, stops_at_flags: bool = False) -> Iterator[Member]:
        """What is alive under a session, parents first; not what another flag holds, if it stops at flags."""
        met: set[Ref] = {(top.zone_id, top.id)}
        pending = deque(self._children.get((top.zone_id, top.id), ()))
        while pending:
            member = self._members[ref := pending.popleft()]
            if ref in met or not is_live(member, self._now) or (member.held and stops_at_flags):
                continue
            met.add(ref)
            yield member
            pending += self._children.get(ref, ())

    def _moved(self, target: Member, flag: int, moving: Sequence[Member], verb: Verb) -> list[Move]:
        flagged = msgspec.structs.replace(target, held=flag)
        moves = {target.id: Move(target, flagged)}
        for member in moving:
            status = SESSION.target(verb, member.status)
            assert status is not None  # only those in a state that the verb leaves were chosen
            after = msgspec.structs.replace(flagged if member.id == target.id else member, status=status)
            moves[member.id] = Move(member, after)
        self._members.update(((m.after.zone_id, m.after.id), m.after) for m in moves.values())
        return list(moves.values())


def not_suspended(session_id: str, target: Member | None, holder: Member | None) -> Moved:
    says = f"The session {session_id!r} is not suspended."
    held: dict[str, object] = {}
    if target is None:
        says = f"The session {session_id!r} has ended; nothing is there to resume."
    elif holder is not None:
        says = f"The session {session_id!r} bears no flag of its own; its ancestor {holder.id!r} holds it."
        held = {"held_by": holder.id, "frees": f"resume {holder.id}"}
    return Moved("agent_not_found_or_not_suspended", says, **held)
