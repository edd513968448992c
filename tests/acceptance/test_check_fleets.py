"""`qd check` of fleets: whatever is wrong with them, their members, panes, monitors and messages is found and named."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from quarterdeck.maintenance.consistency import CHECKS, Check, check_database
from quarterdeck.maintenance.queries import FLEET_QUERIES
from quarterdeck.store.migrate import sqlite_path
from tests.support.builders import ZONE
from tests.support.fleets import ADMINISTRATOR, ALICE, BOB, DIRECTOR, FleetHarness, claim_monitor_command, pane_location
from tests.support.runtime import DirectDatabase, open_runtime

FLEET_CHECKS = {check.name for check in CHECKS if check.statement in FLEET_QUERIES}
CAROL, STRANGER, LAST_DIRECTOR = 5, 6, 8
"""Who has left; the director of fleet 2; that of fleet 3, which is deleted."""
WAITING, DONE, CANCELED, SUMMARY, TO_ALICE, TO_BOB = 1, 2, 3, 4, 5, 6


class Hands:
    """Do harm in a transaction of their own, in which they look at it, and take it back."""

    def __init__(self, connection: sqlite3.Connection | psycopg.Connection) -> None:
        self._connection = connection

    def found(self, harm: str, check: Check) -> set[str]:
        """The ids that a check finds after this."""
        if isinstance(self._connection, sqlite3.Connection):
            self._connection.execute(harm)
            rows = self._connection.execute(check.statement.sqlite).fetchall()
        else:
            self._connection.execute(harm.encode())
            rows = self._connection.execute(check.statement.postgresql.encode()).fetchall()
        self._connection.rollback()
        return {str(row[1]) for row in rows}


@contextlib.contextmanager
def hands_on(url: str) -> Iterator[Hands]:
    path = sqlite_path(url)
    connection = psycopg.connect(url) if path is None else sqlite3.connect(path, timeout=10)
    with contextlib.closing(connection):
        yield Hands(connection)


@pytest.fixture
async def fleet_database_url(engine_url: str) -> str:
    """A database with fleets: one at work, one that has just begun, and one that is deleted."""
    async with open_runtime(engine_url) as keel:
        await keel.put_zone()
        fleeting = FleetHarness(keel)
        await fleeting.create(location=pane_location())
        # Words of a caller's own, which make no administrator.
        skills = '[{"cafleet":{"kind":"builtin-administrator"}}]'
        for name in ("alice", "bob", "carol"):
            await fleeting.register(name, director_id=DIRECTOR, location=pane_location(None), skills=skills)
        await fleeting.deregister(CAROL)
        await fleeting.fleet_lane.submit(claim_monitor_command())
        await fleeting.create()
        last = await fleeting.create(location=pane_location())
        await fleeting.delete(last.fleet.fleet_id)
        for _ in (WAITING, DONE, CANCELED):
            await fleeting.send(ALICE)
        await fleeting.ack(DONE)
        await fleeting.cancel(CANCELED)
        await fleeting.broadcast()
        await fleeting.receipt(TO_ALICE)
    return engine_url


Damage = tuple[str, str, int | str]
"""(the check that must find it, what is done, by which id it is named)"""


def of_fleets() -> list[Damage]:
    member, fleet = "update members set {} where agent_id = {}", "update fleets set {} where fleet_id = {}"
    gone = "status = 'deregistered', deregistered_at = 1"
    mark = f"(select m.agent_card_json from members m where m.agent_id = {ADMINISTRATOR})"
    return [
        ("fleets", member.format(gone, ADMINISTRATOR), 1),
        ("fleets", member.format("registry_id = null", ALICE), 1),
        ("fleets", member.format(gone, DIRECTOR), 1),
        ("fleets", member.format("status = 'active', deregistered_at = null", LAST_DIRECTOR), 3),
        ("fleets", fleet.format("director_agent_id = null", 2), 2),
        ("fleets", fleet.format(f"director_agent_id = {STRANGER}", 1), 1),
        ("fleets", fleet.format(f"director_agent_id = {ADMINISTRATOR}", 1), 1),
        ("fleets", fleet.format("deleted_at = 1", 2), 2),
        ("fleet-members", member.format("status = 'gone'", ALICE), ALICE),
        ("fleet-members", member.format("deregistered_at = 1", ALICE), ALICE),
        ("fleet-members", member.format("deregistered_at = null", CAROL), CAROL),
        ("fleet-members", member.format("registry_id = 'fleet-2-3'", ALICE), ALICE),
        ("fleet-members", member.format("registry_id = 'fleet-1-2'", ADMINISTRATOR), ADMINISTRATOR),
        ("fleet-members", member.format("agent_card_json = '{}'", ADMINISTRATOR), ADMINISTRATOR),
        ("fleet-members", member.format(f"agent_card_json = {mark}", ALICE), ALICE),
        ("fleet-registry", "update agents set status = 'TERMINATED' where id = 'fleet-1-3'", ALICE),
        ("fleet-registry", "delete from agents where id = 'fleet-1-3'", ALICE),
        ("fleet-registry", "update agents set status = 'IDLE' where id = 'fleet-1-5'", CAROL),
        ("fleet-ids", "update fleet_counters set fleets = 2", "fleets"),
        ("fleet-ids", "update fleet_counters set members = 1", "members"),
        ("fleet-ids", "update fleet_counters set messages = 1", "messages"),
        ("fleet-ids", "delete from fleet_counters", "fleets"),
    ]


def of_panes() -> list[Damage]:
    pane = "update agent_placements set {} where agent_id = {}"
    left = "update members set status = 'deregistered', deregistered_at = 1 where agent_id = {}"
    return [
        ("fleet-panes", left.format(BOB), BOB),
        ("fleet-panes", pane.format(f"agent_id = {ADMINISTRATOR}", ALICE), ADMINISTRATOR),
        ("fleet-panes", pane.format(f"director_agent_id = {BOB}", ALICE), ALICE),
        ("fleet-panes", pane.format("director_agent_id = null", ALICE), ALICE),
        ("fleet-panes", f"delete from agent_placements where agent_id = {ALICE}", ALICE),
        ("fleet-panes", f"delete from monitor_config where agent_id = {ALICE}", ALICE),
        ("fleet-monitors", "update monitor_runtime set pid = null", 1),
        ("fleet-monitors", "update monitor_runtime set started_at = null", 1),
        ("fleet-monitors", "update monitor_runtime set last_tick_at = null", 1),
        ("fleet-monitors", f"insert into monitor_runtime (zone_id, fleet_id) values ('{ZONE}', 3)", 3),
    ]


def of_messages() -> list[Damage]:
    message = "update messages set {} where task_id = {}"
    return [
        *(
            ("messages", message.format(wrong, WAITING), WAITING)
            for wrong in (
                "type = 'letter'",
                "status_state = 'read'",
                "status_timestamp = status_timestamp + 1",
                "notified_at = 1, notice = 'failed'",
                f"to_agent_id = {BOB}",
                f"origin_task_id = {WAITING}",
            )
        ),
        *(
            ("messages", message.format(wrong, SUMMARY), SUMMARY)
            for wrong in (
                f"to_agent_id = {ALICE}",
                f"context_id = {ALICE}",
                "status_state = 'canceled'",
                "status_timestamp = status_timestamp + 1",
                "origin_task_id = null",
                f"origin_task_id = {DONE}",
                "notified_at = 1",
                "notice = 'failed'",
            )
        ),
        ("message-ends", message.format("from_agent_id = 77", WAITING), WAITING),
        ("message-ends", message.format(f"from_agent_id = {STRANGER}", SUMMARY), SUMMARY),
        ("message-ends", message.format("to_agent_id = 77", WAITING), WAITING),
        ("message-ends", message.format(f"to_agent_id = {STRANGER}", WAITING), WAITING),
        ("message-ends", message.format(f"to_agent_id = {ADMINISTRATOR}", WAITING), WAITING),
        ("broadcasts", message.format("text = 'Broadcast sent to 3 recipients'", SUMMARY), SUMMARY),
        ("broadcasts", f"delete from messages where task_id = {TO_BOB}", SUMMARY),
        ("broadcasts", message.format(f"to_agent_id = {ALICE}", TO_BOB), SUMMARY),
        ("broadcasts", message.format("task_id = 60", TO_BOB), SUMMARY),
        ("deliveries", message.format("origin_task_id = 77", TO_BOB), TO_BOB),
        ("deliveries", message.format(f"origin_task_id = {DONE}", TO_BOB), TO_BOB),
        ("deliveries", message.format(f"from_agent_id = {ALICE}", TO_BOB), TO_BOB),
        ("deliveries", message.format("fleet_id = 2", TO_BOB), TO_BOB),
        ("deliveries", message.format("created_at = 1", TO_BOB), TO_BOB),
        ("deliveries", message.format("task_id = 0", TO_BOB), 0),
    ]


def test_whatever_is_wrong_with_fleets_is_found_and_named(fleet_database_url: str) -> None:
    checks = {check.name: check for check in CHECKS if check.name in FLEET_CHECKS}
    planted = [*of_fleets(), *of_panes(), *of_messages()]
    assert {name for name, _, _ in planted} == checks.keys()
    with hands_on(fleet_database_url) as hands:
        for name, harm, named in planted:
            assert str(named) in hands.found(harm, checks[name]), harm
    report = check_database(fleet_database_url)
    assert report.is_consistent, report.text()


def test_what_is_wrong_with_a_fleet_is_a_sentence_and_one_wrong_row_is_one_line(fleet_database_url: str) -> None:
    side, text = DirectDatabase(fleet_database_url), "update messages set text = ? where task_id = ?"
    right = side.scalar(f"select text from messages where task_id = {SUMMARY}")
    side.execute(text, "x\ny", SUMMARY)
    [finding] = check_database(fleet_database_url).findings
    assert finding.text() == (
        r"broadcasts: zone z: the broadcast 4 says 'x\\ny', and has 2 deliveries to 2 members, up to 6"
    )
    side.execute(text, right, SUMMARY)
    side.execute("update fleet_counters set messages = 5")
    [finding] = check_database(fleet_database_url).findings
    assert finding.text() == "fleet-ids: zone z: the counter of messages says 5, and the highest id is 6"
