"""Making, changing, removing and looking at members. The rows are zones'; who may touch them is known here."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.caller import Role
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import Heard, Speakers, require_power
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import ChangeMember, Member, MemberChange, MemberFilter, MemberRef
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx

READ = "members.read"
CHANGE = "members.change"


async def change_members(tx: Tx, asks: Sequence[ChangeMember]) -> list[MemberChange | Problem | Busy]:
    """Makes, changes and removes members, in order of arrival. Under the zones' locks, which everything that asks for a
    role takes: whoever is removed is heard no more from this commit on."""
    speakers = Speakers(asks)
    spoken = speakers.statements()
    locked_rows, *answers, rows, counted = await tx.read(
        zones.lock(tx, zones_of(asks)),
        *spoken,
        zones.members_get(sorted({(ask.zone_id, ask.subject) for ask in asks})),
        zones.members_counted({ask.zone_id for ask in asks}),
    )
    locked = zones.locked(locked_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    endings = zone_rules.endings(locked.values())
    heard = speakers.heard(answers, tx.now)
    roster = zone_rules.Roster(zones.members_by_ref(rows).values(), zones.members_by_zone(counted), tx.now)
    outcomes = [
        sessions.held_up(ask, why_not)
        or heard.problem(ask, CHANGE)
        or endings[ask.zone_id]
        or _decided(roster, heard, ask)
        for ask in asks
    ]
    await zones.members_write(tx, roster.moved.values())
    for ask, change in roster.told:
        tx.emit(_event(ask, change))
    return outcomes


def _decided(roster: zone_rules.Roster, heard: Heard, ask: ChangeMember) -> MemberChange | Problem:
    role = heard.role(ask)
    assert role is not None  # who has none has no power either
    change = roster.decide(ask, role)
    if isinstance(change, MemberChange):
        # Whoever comes later in this batch is heard as what they are by then.
        heard.is_now((ask.zone_id, ask.subject), _role(change.after))
    return change


def _event(ask: ChangeMember, change: MemberChange) -> NewEvent:
    before, after = _role(change.before), _role(change.after)
    kind = "added" if before is None else "removed" if after is None else "changed"
    return NewEvent(f"member.{kind}", ask.zone_id, ask.subject, ask.caller.subject, before, after, trace=ask.trace)


def _role(member: Member | None) -> Role | None:
    return None if member is None else member.role


async def show_member(tx: Tx, ref: MemberRef) -> Member:
    await require_power(tx, ref.caller, ref.zone_id, READ)
    key = (ref.zone_id, ref.subject)
    [rows] = await tx.read(zones.members_get([key]))
    member = zones.members_by_ref(rows).get(key)
    if member is None:
        await zones.require(tx, ref.zone_id)
        raise zone_rules.member_not_found(ref.subject)
    return member


async def page_of_members(tx: Tx, wanted: MemberFilter) -> list[Member]:
    """Up to `limit` members, in order of their names."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    members = await zones.members_page(tx, wanted)
    if not members:
        await zones.require(tx, wanted.zone_id)
    return members
