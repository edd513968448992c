"""`qd check` finds every kind of damage to fleets, members, panes, monitors and messages."""

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

FLEET_CHECKS = {check.name for check in CHECKS if check.statement().statement in [*FLEET_QUERIES]}
CAROL, OTHER_DIRECTOR, DELETED_DIRECTOR = 5, 6, 8
"""A deregistered member; the director of fleet 2; the director of fleet 3, which is deleted."""
WAITING, DONE, CANCELED, SUMMARY, TO_ALICE, TO_BOB = 1, 2, 3, 4, 5, 6


class DamageProbe:
    """Causes damage in a transaction, runs a check in it, and rolls back."""

    def __init__(self, connection: sqlite3.Connection | psycopg.Connection) -> None:
        self._connection = connection

    def found_ids(self, statement: str, check: Check) -> set[str]:
        """The ids that the check finds after the statement."""
        if isinstance(self._connection, sqlite3.Connection):
            self._connection.execute(statement)
            rows = self._connection.execute(check.statement().statement.sqlite).fetchall()
        else:
            self._connection.execute(statement.encode())
            rows = self._connection.execute(check.statement().statement.postgresql.encode()).fetchall()
        self._connection.rollback()
        return {str(row[1]) for row in rows}


@contextlib.contextmanager
def open_probe(url: str) -> Iterator[DamageProbe]:
    path = sqlite_path(url)
    connection = psycopg.connect(url) if path is None else sqlite3.connect(path, timeout=10)
    with contextlib.closing(connection):
        yield DamageProbe(connection)


@pytest.fixture
async def fleet_database_url(engine_url: str) -> str:
    """A database with three fleets: one with members and messages, one new, one deleted."""
    async with open_runtime(engine_url) as runtime:
        await runtime.put_zone()
        harness = FleetHarness(runtime)
        await harness.create(location=pane_location())
        # A member's own skills do not make it an administrator.
        skills = '[{"cafleet":{"kind":"builtin-administrator"}}]'
        for name in ("alice", "bob", "carol"):
            await harness.register(name, director_id=DIRECTOR, location=pane_location(None), skills=skills)
        await harness.deregister(CAROL)
        await harness.submit_fleet(claim_monitor_command())
        await harness.create()
        deleted = await harness.create(location=pane_location())
        await harness.delete(deleted.fleet.fleet_id)
        for _ in (WAITING, DONE, CANCELED):
            await harness.send(ALICE)
        await harness.ack(DONE)
        await harness.cancel(CANCELED)
        await harness.broadcast()
        await harness.receipt(TO_ALICE)
    return engine_url


Damage = tuple[str, str, int | str]
"""The check that must find the damage, the statement that causes it, the id in the finding."""


def fleet_damages() -> list[Damage]:
    member, fleet = "update members set {} where agent_id = {}", "update fleets set {} where fleet_id = {}"
    deregistered = "status = 'deregistered', deregistered_at = 1"
    administrator_card = f"(select m.agent_card_json from members m where m.agent_id = {ADMINISTRATOR})"
    return [
        ("fleets", member.format(deregistered, ADMINISTRATOR), 1),
        ("fleets", member.format("registry_id = null", ALICE), 1),
        ("fleets", member.format(deregistered, DIRECTOR), 1),
        ("fleets", member.format("status = 'active', deregistered_at = null", DELETED_DIRECTOR), 3),
        ("fleets", fleet.format("director_agent_id = null", 2), 2),
        ("fleets", fleet.format(f"director_agent_id = {OTHER_DIRECTOR}", 1), 1),
        ("fleets", fleet.format(f"director_agent_id = {ADMINISTRATOR}", 1), 1),
        ("fleets", fleet.format("deleted_at = 1", 2), 2),
        ("fleet-members", member.format("status = 'gone'", ALICE), ALICE),
        ("fleet-members", member.format("deregistered_at = 1", ALICE), ALICE),
        ("fleet-members", member.format("deregistered_at = null", CAROL), CAROL),
        ("fleet-members", member.format("registry_id = 'fleet-2-3'", ALICE), ALICE),
        ("fleet-members", member.format("registry_id = 'fleet-1-2'", ADMINISTRATOR), ADMINISTRATOR),
        ("fleet-members", member.format("agent_card_json = '{}'", ADMINISTRATOR), ADMINISTRATOR),
        ("fleet-members", member.format(f"agent_card_json = {administrator_card}", ALICE), ALICE),
        ("fleet-registry", "update agents set status = 'TERMINATED' where id = 'fleet-1-3'", ALICE),
        ("fleet-registry", "delete from agents where id = 'fleet-1-3'", ALICE),
        ("fleet-registry", "update agents set status = 'IDLE' where id = 'fleet-1-5'", CAROL),
        ("fleet-ids", "update fleet_counters set fleets = 2", "fleets"),
        ("fleet-ids", "update fleet_counters set members = 1", "members"),
        ("fleet-ids", "update fleet_counters set messages = 1", "messages"),
        ("fleet-ids", "delete from fleet_counters", "fleets"),
    ]


def pane_damages() -> list[Damage]:
    pane = "update agent_placements set {} where agent_id = {}"
    deregister = "update members set status = 'deregistered', deregistered_at = 1 where agent_id = {}"
    return [
        ("fleet-panes", deregister.format(BOB), BOB),
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


def message_damages() -> list[Damage]:
    message = "update messages set {} where task_id = {}"
    return [
        *(
            ("messages", message.format(change, WAITING), WAITING)
            for change in (
                "type = 'letter'",
                "status_state = 'read'",
                "status_timestamp = status_timestamp + 1",
                "notified_at = 1, notice = 'failed'",
                f"to_agent_id = {BOB}",
                f"origin_task_id = {WAITING}",
            )
        ),
        *(
            ("messages", message.format(change, SUMMARY), SUMMARY)
            for change in (
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
        ("message-ends", message.format(f"from_agent_id = {OTHER_DIRECTOR}", SUMMARY), SUMMARY),
        ("message-ends", message.format("to_agent_id = 77", WAITING), WAITING),
        ("message-ends", message.format(f"to_agent_id = {OTHER_DIRECTOR}", WAITING), WAITING),
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


def test_every_kind_of_fleet_damage_is_found_by_its_check(fleet_database_url: str) -> None:
    checks = {check.name: check for check in CHECKS if check.name in FLEET_CHECKS}
    planted = [*fleet_damages(), *pane_damages(), *message_damages()]
    assert {name for name, _, _ in planted} == checks.keys()
    with open_probe(fleet_database_url) as probe:
        for name, statement, expected_id in planted:
            assert str(expected_id) in probe.found_ids(statement, checks[name]), statement
    report = check_database(fleet_database_url)
    assert report.is_consistent, report.text()


def test_one_wrong_fleet_row_is_one_finding_with_a_readable_text(fleet_database_url: str) -> None:
    database, text = DirectDatabase(fleet_database_url), "update messages set text = ? where task_id = ?"
    original = database.scalar(f"select text from messages where task_id = {SUMMARY}")
    database.execute(text, "x\ny", SUMMARY)
    [finding] = check_database(fleet_database_url).findings
    assert finding.text() == (
        r"broadcasts: zone z: broadcast 4 has the text 'x\\ny', but has 2 deliveries to 2 members, up to id 6"
    )
    database.execute(text, original, SUMMARY)
    database.execute("update fleet_counters set messages = 5")
    [finding] = check_database(fleet_database_url).findings
    assert finding.text() == "fleet-ids: zone z: the counter of messages is 5, but the highest id is 6"
