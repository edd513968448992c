"""A day in fleets: everything that is said to the database for them, and what years of it leave there."""

from __future__ import annotations

from quarterdeck.domain.fleets.model.commands import ConfigureMonitor, ReleaseMonitor, SetMemberPane
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.store.sql import BoundStatement, Param
from tests.support.asking import ZONE, admin
from tests.support.fleeting import Fleeting, claiming, place
from tests.support.keel import Keel, Side

LAST = 2**53
"""Above every id, and later than every instant."""


async def a_day_of_fleets(keel: Keel) -> None:
    """One fleet is deleted and one left, with a member and what waits for it, so that what was recorded has something
    to do when it is run again."""
    fleeting = Fleeting(keel)
    over = await fleeting.create(location=place())
    await fleeting.crew.submit(claiming(fleet_id=over.fleet.fleet_id))
    await fleeting.delete(over.fleet.fleet_id)
    made = await fleeting.create(location=place())
    fleet_id, director = made.fleet.fleet_id, made.director.agent_id
    member = await fleeting.register("a", fleet_id, director_id=director, location=place(None))
    agent_id = member.member.agent_id
    await watched(fleeting, fleet_id, agent_id)
    gone = await fleeting.register("b", fleet_id, director_id=director, location=place("%9"))
    await fleeting.deregister(gone.member.agent_id, fleet_id)
    told = await fleeting.broadcast(idempotency_key="k", request_digest="d", fleet_id=fleet_id, from_agent_id=director)
    await fleeting.broadcast(idempotency_key="k", request_digest="d", fleet_id=fleet_id, from_agent_id=director)
    for _ in range(2):
        sent = await fleeting.send(agent_id, fleet_id=fleet_id, from_agent_id=director)
    await fleeting.ack(sent.task_id, agent_id, fleet_id=fleet_id)
    lists = lists_of(fleet_id, agent_id, told.message.task_id)
    await keel.engine.read(lambda tx: tx.read(*lists), zones=[ZONE])


async def watched(fleeting: Fleeting, fleet_id: int, agent_id: int) -> None:
    """Its pane comes, it is watched over otherwise, and a monitor comes, beats and goes."""
    placed = SetMemberPane(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, agent_id=agent_id, pane_id="%8")
    await fleeting.crew.submit(placed)
    await fleeting.crew.submit(
        ConfigureMonitor(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, agent_id=agent_id, enabled=False)
    )
    await fleeting.crew.submit(claiming(fleet_id=fleet_id))
    # A heartbeat in the same millisecond as the claim would write nothing.
    fleeting.keel.side.run("update monitor_runtime set last_tick_at = last_tick_at - 1000")
    await fleeting.beat(agent_id, fleet_id=fleet_id)
    await fleeting.crew.submit(ReleaseMonitor(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, pid=100, host_id="host"))


def lists_of(fleet_id: int, agent_id: int, summary: int) -> list[BoundStatement]:
    """What is read by whoever only looks."""
    fleet, own = (ZONE, fleet_id), (ZONE, agent_id)
    bounds: dict[str, Param] = {"zone_id": ZONE, "limit": 10, "after": 0, "before": LAST}
    moved: dict[str, Param] = {"zone_id": ZONE, "agent_id": agent_id, "limit": 10, "after": 0, "state": None}
    return [
        LISTS.fleets_page(zone_id=ZONE, before=LAST, with_deleted=0, limit=10),
        LISTS.fleets_root_members(batch=[(*fleet, "active", agent_id)]),
        LISTS.fleets_count_members(batch=[(*fleet, "active")]),
        LISTS.members_page(zone_id=ZONE, fleet_id=fleet_id, state="active", after=0, limit=10),
        LISTS.members_get_names(batch=[own]),
        LISTS.placements_get(batch=[own]),
        LISTS.messages_notice_states(batch=[(ZONE, summary + 1)]),
        LISTS.messages_unread_counts(batch=[own]),
        LISTS.messages_newest_unread(batch=[own]),
        *(each(agent_id=agent_id, **bounds) for each in (LISTS.messages_unread, LISTS.messages_unread_oldest)),
        *(each(at=LAST, id=LAST, **moved) for each in (LISTS.messages_inbox, LISTS.messages_sent)),
        *(each(at=0, id=0, **moved) for each in (LISTS.messages_inbox_oldest, LISTS.messages_sent_oldest)),
        *(each(fleet_id=fleet_id, **bounds) for each in (LISTS.messages_page, LISTS.messages_page_oldest)),
        LISTS.timeline_heads(zone_id=ZONE, fleet_id=fleet_id, before=LAST, limit=10),
        LISTS.timeline_changed(batch=[(*fleet, summary)]),
        LISTS.timeline_deliveries(batch=[(*fleet, summary, summary + 10)]),
    ]


def grow_fleets(side: Side, zone_id: str, many: int) -> None:
    """Fleets of this zone and of others, each with a member in a pane; in the one that is left, as many who have left,
    and five times as many messages that its member has acknowledged."""
    zone = "case when n % 2 = 0 then ? else 'zone' || n % 7 end"
    for statement in (
        f"insert into fleets select {zone}, 1000 + n, null, 1, null, null, 'a' from generate_series(1, ?) n",
        f"insert into members select {zone}, 1000 + n, 1000 + n, 'g' || n, 'n', '', 'active', 1, null, '{{}}' "
        "from generate_series(1, ?) n",
        f"insert into agent_placements select {zone}, 1000 + n, null, 's', '@1', '%1', 'claude', 1, 'h', 1, 't', 1 "
        "from generate_series(1, ?) n",
        f"insert into monitor_config select {zone}, 1000 + n, 60, null, 1 from generate_series(1, ?) n",
        f"insert into monitor_runtime select {zone}, 1000 + n, 1, 1, 1, 5, 'h', 1, 'quiet' "
        "from generate_series(1, ?) n",
        f"insert into messages select {zone}, 1000000 + n, 1000 + n, 1000 + n, 1, 1000 + n, 'unicast', 1, "
        "'input_required', 1, null, 't', null, null from generate_series(1, ?) n",
    ):
        side.run(statement, zone_id, many)
    side.run("insert into fleet_counters select 'counting' || n, 1, 1, 1 from generate_series(1, ?) n", many)
    left = "(select max(fleet_id) as fleet_id from fleets where zone_id = ? and fleet_id < 1000) f"
    side.run(
        f"insert into members select ?, 1000000 + n, f.fleet_id, 'l' || n, 'n', '', 'deregistered', 1, 1, '{{}}' "
        f"from generate_series(1, ?) n, {left}",
        *(zone_id, many, zone_id),
    )
    side.run(
        "insert into messages select ?, 2000000 + n, m.fleet_id, m.agent_id, f.director_agent_id, m.agent_id, "
        "'unicast', 1, 'completed', n, null, 't', null, null from generate_series(1, ?) n, members m "
        "join fleets f on f.zone_id = m.zone_id and f.fleet_id = m.fleet_id where m.zone_id = ? and m.name = 'a'",
        *(zone_id, 5 * many, zone_id),
    )
