"""Fleets for tests: rows with defaults, and a harness with the lanes of fleets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import psycopg

from quarterdeck.core.caller import Caller
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    Broadcast,
    Cancel,
    ClaimMonitor,
    CreateFleet,
    CreateFleetResult,
    DeleteFleet,
    DeleteFleetResult,
    DeregisterMember,
    DeregisterMemberResult,
    PaneLocation,
    RecordMonitorHeartbeat,
    RecordReceipt,
    RegisterMember,
    RegisterMemberResult,
    Send,
    SendResult,
)
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    MemberStatus,
    Message,
    MessageState,
    MessageType,
    MonitorConfig,
    MonitorRuntime,
    NoticeFailure,
    PingPolicy,
    Placement,
)
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand, change_fleets
from quarterdeck.domain.fleets.operations.messages import MessageBatchRunner, SubmitMessageCommand
from quarterdeck.domain.fleets.rules.agent_cards import build_administrator_card, build_card
from quarterdeck.store.migrate import sqlite_path
from tests.support.builders import NOW, ZONE, admin
from tests.support.runtime import DirectDatabase, RuntimeHarness
from tests.support.structs import build_struct

FLEET_ID = 1
DIRECTOR, ADMINISTRATOR, ALICE, BOB = 1, 2, 3, 4
FLEET_TABLES = (
    "fleet_counters", "fleets", "members", "messages", "agent_placements", "monitor_config", "monitor_runtime",
    "agents", "agent_pulses",
)  # fmt: skip
"""The tables in which a fleet has rows."""


# -- rows --------------------------------------------------------------------------------------------------------


def fleet_row(fleet_id: int = FLEET_ID, **fields: object) -> Fleet:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "fleet_id": fleet_id,
        "label": None,
        "created_at": NOW - 1_000,
        "deleted_at": None,
        "director_agent_id": DIRECTOR,
        "created_by": "tester",
    }
    return build_struct(Fleet, **(defaults | fields))


def member_row(agent_id: int, **fields: object) -> Member:
    fleet_id = fields.get("fleet_id", FLEET_ID)
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "agent_id": agent_id,
        "fleet_id": fleet_id,
        "registry_id": f"fleet-{fleet_id}-{agent_id}",
        "name": f"m{agent_id}",
        "description": "",
        "status": MemberStatus.ACTIVE,
        "registered_at": NOW - 1_000,
        "deregistered_at": None,
        "agent_card_json": build_card(f"m{agent_id}", ""),
    }
    return build_struct(Member, **(defaults | fields))


def administrator_row(agent_id: int = ADMINISTRATOR, fleet_id: int = FLEET_ID) -> Member:
    card_json = build_administrator_card(fleet_id)
    return member_row(agent_id, fleet_id=fleet_id, registry_id=None, name="Administrator", agent_card_json=card_json)


def deregistered_row(agent_id: int, **fields: object) -> Member:
    return member_row(agent_id, status=MemberStatus.DEREGISTERED, deregistered_at=NOW - 500, **fields)


def message_row(task_id: int = 1, to: int = ALICE, **fields: object) -> Message:
    """An unread message from the director."""
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "task_id": task_id,
        "fleet_id": FLEET_ID,
        "context_id": to,
        "from_agent_id": DIRECTOR,
        "to_agent_id": to,
        "type": MessageType.UNICAST,
        "created_at": NOW - 1_000,
        "status_state": MessageState.INPUT_REQUIRED,
        "status_timestamp": NOW - 1_000,
        "origin_task_id": None,
        "text": "hello",
        "notified_at": None,
        "notice": None,
    }
    return build_struct(Message, **(defaults | fields))


def placement_row(agent_id: int = ALICE, **fields: object) -> Placement:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "agent_id": agent_id,
        "director_agent_id": DIRECTOR,
        "tmux_session": "main",
        "tmux_window_id": "@1",
        "tmux_pane_id": None,
        "coding_agent": "claude",
        "created_at": NOW - 1_000,
        "host_id": "host",
        "user_id": 1_000,
        "tmux_socket": "/tmp/tmux",
        "tmux_pid": 7,
    }
    return build_struct(Placement, **(defaults | fields))


def monitor_config_row(agent_id: int = ALICE, **fields: object) -> MonitorConfig:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "agent_id": agent_id,
        "interval_seconds": 60,
        "last_ping_at": None,
        "enabled": 1,
    }
    return build_struct(MonitorConfig, **(defaults | fields))


def monitor_runtime_row(**fields: object) -> MonitorRuntime:
    """A monitor with a recent heartbeat."""
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "fleet_id": FLEET_ID,
        "pid": 100,
        "started_at": NOW - 60_000,
        "last_tick_at": NOW - 1_000,
        "tick_seconds": 5,
        "host_id": "host",
        "user_id": 1_000,
        "policy": PingPolicy.QUIET,
    }
    return build_struct(MonitorRuntime, **(defaults | fields))


def pane_location(pane_id: str | None = "%1", **fields: object) -> PaneLocation:
    defaults: dict[str, object] = {
        "session": "main",
        "window_id": "@1",
        "pane_id": pane_id,
        "coding_agent": "claude",
        "host_id": "host",
        "user_id": 1_000,
        "socket": "/tmp/tmux",
        "tmux_pid": 7,
    }
    return build_struct(PaneLocation, **(defaults | fields))


def claim_monitor_command(pid: int = 100, fleet_id: int = FLEET_ID, **fields: object) -> ClaimMonitor:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "caller": admin(),
        "fleet_id": fleet_id,
        "pid": pid,
        "host_id": "host",
        "user_id": 1_000,
        "tick_seconds": 5,
        "policy": PingPolicy.QUIET,
    }
    return build_struct(ClaimMonitor, **(defaults | fields))


# -- harness -----------------------------------------------------------------------------------------------------


class FleetHarness:
    """The fleets of one zone."""

    def __init__(self, runtime: RuntimeHarness, zone_id: str = ZONE) -> None:
        self.runtime = runtime
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)
        self.delivered: list[Message] = []
        """Messages that were passed to the notifier after their commit."""
        fleet_lane = runtime.lanes.add_write_lane("fleet", change_fleets)
        message_lane = runtime.lanes.add_write_lane("message", MessageBatchRunner(self._deliver).run)
        self.submit_fleet = cast(SubmitFleetCommand, fleet_lane.submit)
        self.submit_message = cast(SubmitMessageCommand, message_lane.submit)

    def _deliver(self, messages: Sequence[Message]) -> None:
        self.delivered += messages

    # -- fleets and members

    def create_command(self, **fields: object) -> CreateFleet:
        defaults: dict[str, object] = {"label": None, "location": None, "caller": self.caller}
        return build_struct(CreateFleet, zone_id=self.zone_id, **(defaults | fields))

    async def create(self, **fields: object) -> CreateFleetResult:
        result = await self.submit_fleet(self.create_command(**fields))
        assert isinstance(result, CreateFleetResult)
        return result

    async def delete(self, fleet_id: int = FLEET_ID) -> DeleteFleetResult:
        command = DeleteFleet(zone_id=self.zone_id, caller=self.caller, fleet_id=fleet_id)
        result = await self.submit_fleet(command)
        assert isinstance(result, DeleteFleetResult)
        return result

    def register_command(self, name: str = "alice", fleet_id: int = FLEET_ID, **fields: object) -> RegisterMember:
        defaults: dict[str, object] = {"description": "d"}
        identity = {"zone_id": self.zone_id, "caller": self.caller, "fleet_id": fleet_id, "name": name}
        return build_struct(RegisterMember, **(defaults | identity | fields))

    async def register(self, name: str = "alice", fleet_id: int = FLEET_ID, **fields: object) -> RegisterMemberResult:
        result = await self.submit_fleet(self.register_command(name, fleet_id, **fields))
        assert isinstance(result, RegisterMemberResult)
        return result

    async def deregister(self, agent_id: int, fleet_id: int = FLEET_ID) -> DeregisterMemberResult:
        command = DeregisterMember(zone_id=self.zone_id, caller=self.caller, fleet_id=fleet_id, agent_id=agent_id)
        result = await self.submit_fleet(command)
        assert isinstance(result, DeregisterMemberResult)
        return result

    async def heartbeat(self, *pinged: int, pid: int = 100, fleet_id: int = FLEET_ID) -> MonitorRuntime:
        command = RecordMonitorHeartbeat(
            zone_id=self.zone_id,
            caller=self.caller,
            fleet_id=fleet_id,
            pid=pid,
            host_id="host",
            pinged_agent_ids=pinged,
        )
        return await self.submit_fleet(command)

    # -- messages

    def send_command(self, to: int = ALICE, text: str = "hello", **fields: object) -> Send:
        defaults: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "caller": self.caller}
        return build_struct(Send, zone_id=self.zone_id, to_agent_id=to, text=text, **(defaults | fields))

    async def send(self, to: int = ALICE, text: str = "hello", **fields: object) -> Message:
        sent = await self.submit_message(self.send_command(to, text, **fields))
        assert isinstance(sent, SendResult)
        return sent.message

    async def broadcast(self, text: str = "all", **fields: object) -> SendResult:
        defaults: dict[str, object] = {"fleet_id": FLEET_ID, "from_agent_id": DIRECTOR, "caller": self.caller}
        command = build_struct(Broadcast, zone_id=self.zone_id, text=text, **(defaults | fields))
        sent = await self.submit_message(command)
        assert isinstance(sent, SendResult)
        return sent

    async def ack(self, message_id: int, agent_id: int = ALICE, **fields: object) -> Message:
        defaults: dict[str, object] = {"fleet_id": FLEET_ID, "caller": self.caller, "agent_id": agent_id}
        command = build_struct(Acknowledge, zone_id=self.zone_id, message_id=message_id, **(defaults | fields))
        return _require_message(await self.submit_message(command))

    async def cancel(self, message_id: int, agent_id: int = DIRECTOR, **fields: object) -> Message:
        defaults: dict[str, object] = {"fleet_id": FLEET_ID, "caller": self.caller, "agent_id": agent_id}
        command = build_struct(Cancel, zone_id=self.zone_id, message_id=message_id, **(defaults | fields))
        return _require_message(await self.submit_message(command))

    async def receipt(self, message_id: int, notice: NoticeFailure | None = None) -> Message:
        command = RecordReceipt(zone_id=self.zone_id, fleet_id=FLEET_ID, message_id=message_id, failure=notice)
        return _require_message(await self.submit_message(command))

    # -- the database, directly

    def count_rows(self) -> dict[str, int]:
        return {table: self.runtime.database.count(table) for table in FLEET_TABLES}


def _require_message(result: Message) -> Message:
    assert isinstance(result, Message)
    return result


def add_acknowledged_messages(
    database: DirectDatabase, count: int, to: int = ALICE, zone_id: str = ZONE, fleet_id: int = FLEET_ID
) -> None:
    """Insert `count` messages from the director that `to` has acknowledged, as after long use."""
    database.execute(
        "insert into messages with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) "
        "select c.zone_id, c.messages + n.i, f.fleet_id, m.agent_id, f.director_agent_id, m.agent_id, 'unicast', "
        "f.created_at, 'input_required', f.created_at, null, 'done long ago', null, 'no_pane' from n, fleet_counters c "
        "join fleets f on f.zone_id = c.zone_id join members m on m.zone_id = c.zone_id and m.fleet_id = f.fleet_id "
        "where c.zone_id = ? and f.fleet_id = ? and m.agent_id = ?",
        *(count, zone_id, fleet_id, to),
    )
    database.execute("update fleet_counters set messages = messages + ? where zone_id = ?", count, zone_id)
    # A second statement, so that the rows were in the index that a poll reads.
    database.execute(
        "update messages set status_state = 'completed', status_timestamp = created_at + task_id "
        "where zone_id = ? and context_id = ? and status_state = 'input_required'",
        *(zone_id, to),
    )
    if not sqlite_path(database.url):
        # Autovacuum does this after so many changes.
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("vacuum (analyze) messages")


@contextmanager
def fail_writes(database: DirectDatabase, operation: str, table: str, when: str = "1 = 1") -> Iterator[None]:
    """Make the database refuse these writes inside the context. `operation` is insert or update."""
    if sqlite_path(database.url):
        database.execute(
            f"create trigger fails before {operation} on {table} when {when} begin select raise(abort, 'injected'); end"
        )
    else:
        database.execute(
            "create function fails() returns trigger language plpgsql as "
            "$$ begin raise exception 'injected' using errcode = 'check_violation'; end $$"
        )
        database.execute(
            f"create trigger fails before {operation} on {table} for each row when ({when}) execute function fails()"
        )
    try:
        yield
    finally:
        database.execute("drop trigger fails" if sqlite_path(database.url) else f"drop trigger fails on {table}")
        if not sqlite_path(database.url):
            database.execute("drop function fails()")
