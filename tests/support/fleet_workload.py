"""Every statement of fleets, and the rows that years of use leave behind."""

from __future__ import annotations

from quarterdeck.domain.fleets.model.commands import ConfigureMonitor, ReleaseMonitor, SetMemberPane
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.store.sql import BoundStatement
from tests.support.builders import ZONE, admin
from tests.support.fleets import FleetHarness, claim_monitor_command, pane_location
from tests.support.runtime import DirectDatabase, RuntimeHarness

MAX_ID = 2**53
"""Above every id, and later than every instant."""


async def run_fleet_workload(runtime: RuntimeHarness) -> None:
    """Run every statement of fleets. One fleet is deleted. The other remains, with a member and unread messages, so
    that the recorded statements find rows when they run again."""
    harness = FleetHarness(runtime)
    deleted = await harness.create(location=pane_location())
    await harness.submit_fleet(claim_monitor_command(fleet_id=deleted.fleet.fleet_id))
    await harness.delete(deleted.fleet.fleet_id)
    created = await harness.create(location=pane_location())
    fleet_id, director = created.fleet.fleet_id, created.director.agent_id
    member = await harness.register("a", fleet_id, director_id=director, location=pane_location(None))
    agent_id = member.member.agent_id
    await run_monitor_workload(harness, fleet_id, agent_id)
    deregistered = await harness.register("b", fleet_id, director_id=director, location=pane_location("%9"))
    await harness.deregister(deregistered.member.agent_id, fleet_id)
    broadcast = await harness.broadcast(
        idempotency_key="k", request_digest="d", fleet_id=fleet_id, from_agent_id=director
    )
    await harness.broadcast(idempotency_key="k", request_digest="d", fleet_id=fleet_id, from_agent_id=director)
    for _ in range(2):
        sent = await harness.send(agent_id, fleet_id=fleet_id, from_agent_id=director)
    await harness.ack(sent.task_id, agent_id, fleet_id=fleet_id)
    lists = list_statements(fleet_id, agent_id, broadcast.message.task_id)
    await runtime.engine.read(lambda tx: tx.read(*lists), zones=[ZONE])


async def run_monitor_workload(harness: FleetHarness, fleet_id: int, agent_id: int) -> None:
    """Set the member's pane and monitor configuration; a monitor claims, sends a heartbeat and releases."""
    pane_command = SetMemberPane(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, agent_id=agent_id, pane_id="%8")
    await harness.submit_fleet(pane_command)
    await harness.submit_fleet(
        ConfigureMonitor(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, agent_id=agent_id, enabled=False)
    )
    await harness.submit_fleet(claim_monitor_command(fleet_id=fleet_id))
    # A heartbeat in the same millisecond as the claim would write nothing.
    harness.runtime.database.execute("update monitor_runtime set last_tick_at = last_tick_at - 1000")
    await harness.heartbeat(agent_id, fleet_id=fleet_id)
    await harness.submit_fleet(ReleaseMonitor(zone_id=ZONE, caller=admin(), fleet_id=fleet_id, pid=100, host_id="host"))


def list_statements(fleet_id: int, agent_id: int, summary: int) -> list[BoundStatement]:
    """The statements of list and read requests."""
    fleet, member = (ZONE, fleet_id), (ZONE, agent_id)
    return [
        LISTS.fleets_page(zone_id=ZONE, before=MAX_ID, with_deleted=0, limit=10),
        LISTS.fleets_root_members(batch=[(*fleet, "active", agent_id)]),
        LISTS.fleets_count_members(batch=[(*fleet, "active")]),
        LISTS.members_page(zone_id=ZONE, fleet_id=fleet_id, state="active", after=0, limit=10),
        LISTS.members_get_names(batch=[member]),
        LISTS.placements_get(batch=[member]),
        LISTS.messages_notice_states(batch=[(ZONE, summary + 1)]),
        LISTS.messages_unread_counts(batch=[member]),
        LISTS.messages_newest_unread(batch=[member]),
        *(
            statement(zone_id=ZONE, agent_id=agent_id, after=0, before=MAX_ID, limit=10)
            for statement in (LISTS.messages_unread, LISTS.messages_unread_oldest)
        ),
        *(
            statement(zone_id=ZONE, agent_id=agent_id, state=None, after=0, at=MAX_ID, id=MAX_ID, limit=10)
            for statement in (LISTS.messages_inbox, LISTS.messages_sent)
        ),
        *(
            statement(zone_id=ZONE, agent_id=agent_id, state=None, after=0, at=0, id=0, limit=10)
            for statement in (LISTS.messages_inbox_oldest, LISTS.messages_sent_oldest)
        ),
        *(
            statement(zone_id=ZONE, fleet_id=fleet_id, after=0, before=MAX_ID, limit=10)
            for statement in (LISTS.messages_page, LISTS.messages_page_oldest)
        ),
        LISTS.timeline_heads(zone_id=ZONE, fleet_id=fleet_id, before=MAX_ID, limit=10),
        LISTS.timeline_changed(batch=[(*fleet, summary)]),
        LISTS.timeline_deliveries(batch=[(*fleet, summary, summary + 10)]),
    ]


def add_fleet_rows(database: DirectDatabase, zone_id: str, count: int) -> None:
    """Insert fleets of this zone and of others, each with a member in a pane. The workload's remaining fleet gets
    `count` deregistered members, and five times as many messages that its member has acknowledged."""
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
        database.execute(statement, zone_id, count)
    database.execute("insert into fleet_counters select 'counting' || n, 1, 1, 1 from generate_series(1, ?) n", count)
    remaining_fleet = "(select max(fleet_id) as fleet_id from fleets where zone_id = ? and fleet_id < 1000) f"
    database.execute(
        f"insert into members select ?, 1000000 + n, f.fleet_id, 'l' || n, 'n', '', 'deregistered', 1, 1, '{{}}' "
        f"from generate_series(1, ?) n, {remaining_fleet}",
        *(zone_id, count, zone_id),
    )
    database.execute(
        "insert into messages select ?, 2000000 + n, m.fleet_id, m.agent_id, f.director_agent_id, m.agent_id, "
        "'unicast', 1, 'completed', n, null, 't', null, null from generate_series(1, ?) n, members m "
        "join fleets f on f.zone_id = m.zone_id and f.fleet_id = m.fleet_id where m.zone_id = ? and m.name = 'a'",
        *(zone_id, 5 * count, zone_id),
    )
