"""Fleets as tests write them: rows with plain defaults, and the room's lanes on a keel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    FleetCommand,
    FleetOutcome,
    MessageCommand,
    MessageOutcome,
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
from quarterdeck.domain.fleets.operations.members import change_fleets
from quarterdeck.domain.fleets.operations.messages import MessageBatchRunner
from quarterdeck.domain.fleets.rules.agent_cards import build_administrator_card, build_card
from quarterdeck.engine.lanes import Lane
from quarterdeck.store.migrate import sqlite_path
from tests.support.asking import NOW, ZONE, admin
from tests.support.keel import Keel, Side
from tests.support.making import struct_of

FLEET = 1
DIRECTOR, ADMINISTRATOR, ALICE, BOB = 1, 2, 3, 4
TABLES = (
    "fleet_counters", "fleets", "members", "messages", "agent_placements", "monitor_config", "monitor_runtime",
    "agents", "agent_pulses",
)  # fmt: skip
"""Where a fleet leaves rows."""


# -- rows --------------------------------------------------------------------------------------------------------


def fleet(fleet_id: int = FLEET, **stored: object) -> Fleet:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "fleet_id": fleet_id,
        "label": None,
        "created_at": NOW - 1_000,
        "deleted_at": None,
        "director_agent_id": DIRECTOR,
        "created_by": "tester",
    }
    return struct_of(Fleet, **(plain | stored))


def member(agent_id: int, **stored: object) -> Member:
    fleet_id = stored.get("fleet_id", FLEET)
    plain: dict[str, object] = {
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
    return struct_of(Member, **(plain | stored))


def administrator(agent_id: int = ADMINISTRATOR, fleet_id: int = FLEET) -> Member:
    told = build_administrator_card(fleet_id)
    return member(agent_id, fleet_id=fleet_id, registry_id=None, name="Administrator", agent_card_json=told)


def left(agent_id: int, **stored: object) -> Member:
    return member(agent_id, status=MemberStatus.DEREGISTERED, deregistered_at=NOW - 500, **stored)


def message(task_id: int = 1, to: int = ALICE, **stored: object) -> Message:
    """From the director, unread."""
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "task_id": task_id,
        "fleet_id": FLEET,
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
    return struct_of(Message, **(plain | stored))


def placement(agent_id: int = ALICE, **stored: object) -> Placement:
    plain: dict[str, object] = {
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
    return struct_of(Placement, **(plain | stored))


def config(agent_id: int = ALICE, **stored: object) -> MonitorConfig:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "agent_id": agent_id,
        "interval_seconds": 60,
        "last_ping_at": None,
        "enabled": 1,
    }
    return struct_of(MonitorConfig, **(plain | stored))


def runtime(**stored: object) -> MonitorRuntime:
    """One that has just been heard of."""
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "fleet_id": FLEET,
        "pid": 100,
        "started_at": NOW - 60_000,
        "last_tick_at": NOW - 1_000,
        "tick_seconds": 5,
        "host_id": "host",
        "user_id": 1_000,
        "policy": PingPolicy.QUIET,
    }
    return struct_of(MonitorRuntime, **(plain | stored))


def place(pane_id: str | None = "%1", **said: object) -> PaneLocation:
    plain: dict[str, object] = {
        "session": "main",
        "window_id": "@1",
        "pane_id": pane_id,
        "coding_agent": "claude",
        "host_id": "host",
        "user_id": 1_000,
        "socket": "/tmp/tmux",
        "tmux_pid": 7,
    }
    return struct_of(PaneLocation, **(plain | said))


def claiming(pid: int = 100, fleet_id: int = FLEET, **said: object) -> ClaimMonitor:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "caller": admin(),
        "fleet_id": fleet_id,
        "pid": pid,
        "host_id": "host",
        "user_id": 1_000,
        "tick_seconds": 5,
        "policy": PingPolicy.QUIET,
    }
    return struct_of(ClaimMonitor, **(plain | said))


# -- on a keel ---------------------------------------------------------------------------------------------------


class Fleeting:
    """The fleets of one zone."""

    def __init__(self, keel: Keel, zone_id: str = ZONE) -> None:
        self.keel = keel
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)
        self.delivered: list[Message] = []
        """What was handed to whoever types notices, after its commit."""
        self.crew: Lane[FleetCommand, FleetOutcome] = keel.lanes.add_write_lane("fleet", change_fleets)
        self.talk: Lane[MessageCommand, MessageOutcome] = keel.lanes.add_write_lane(
            "message", MessageBatchRunner(self._deliver).run
        )

    def _deliver(self, messages: Sequence[Message]) -> None:
        self.delivered += messages

    # -- fleets and members

    def creating(self, **asked: object) -> CreateFleet:
        plain: dict[str, object] = {"label": None, "location": None, "caller": self.caller}
        return struct_of(CreateFleet, zone_id=self.zone_id, **(plain | asked))

    async def create(self, **asked: object) -> CreateFleetResult:
        made = await self.crew.submit(self.creating(**asked))
        assert isinstance(made, CreateFleetResult)
        return made

    async def delete(self, fleet_id: int = FLEET) -> DeleteFleetResult:
        ask = DeleteFleet(zone_id=self.zone_id, caller=self.caller, fleet_id=fleet_id)
        done = await self.crew.submit(ask)
        assert isinstance(done, DeleteFleetResult)
        return done

    def registering(self, name: str = "alice", fleet_id: int = FLEET, **asked: object) -> RegisterMember:
        plain: dict[str, object] = {"description": "d"}
        who = {"zone_id": self.zone_id, "caller": self.caller, "fleet_id": fleet_id, "name": name}
        return struct_of(RegisterMember, **(plain | who | asked))

    async def register(self, name: str = "alice", fleet_id: int = FLEET, **asked: object) -> RegisterMemberResult:
        made = await self.crew.submit(self.registering(name, fleet_id, **asked))
        assert isinstance(made, RegisterMemberResult)
        return made

    async def deregister(self, agent_id: int, fleet_id: int = FLEET) -> DeregisterMemberResult:
        ask = DeregisterMember(zone_id=self.zone_id, caller=self.caller, fleet_id=fleet_id, agent_id=agent_id)
        gone = await self.crew.submit(ask)
        assert isinstance(gone, DeregisterMemberResult)
        return gone

    async def beat(self, *pinged: int, pid: int = 100, fleet_id: int = FLEET) -> FleetOutcome:
        ask = RecordMonitorHeartbeat(
            zone_id=self.zone_id, caller=self.caller, fleet_id=fleet_id, pid=pid, host_id="host", pinged=pinged
        )
        return await self.crew.submit(ask)

    # -- messages

    def sending(self, to: int = ALICE, text: str = "hello", **asked: object) -> Send:
        plain: dict[str, object] = {"fleet_id": FLEET, "from_agent_id": DIRECTOR, "caller": self.caller}
        return struct_of(Send, zone_id=self.zone_id, to_agent_id=to, text=text, **(plain | asked))

    async def send(self, to: int = ALICE, text: str = "hello", **asked: object) -> Message:
        sent = await self.talk.submit(self.sending(to, text, **asked))
        assert isinstance(sent, SendResult)
        return sent.message

    async def broadcast(self, text: str = "all", **asked: object) -> SendResult:
        plain: dict[str, object] = {"fleet_id": FLEET, "from_agent_id": DIRECTOR, "caller": self.caller}
        ask = struct_of(Broadcast, zone_id=self.zone_id, text=text, **(plain | asked))
        sent = await self.talk.submit(ask)
        assert isinstance(sent, SendResult)
        return sent

    async def ack(self, message_id: int, agent_id: int = ALICE, **asked: object) -> Message:
        plain: dict[str, object] = {"fleet_id": FLEET, "caller": self.caller, "agent_id": agent_id}
        ask = struct_of(Acknowledge, zone_id=self.zone_id, message_id=message_id, **(plain | asked))
        return _message(await self.talk.submit(ask))

    async def cancel(self, message_id: int, agent_id: int = DIRECTOR, **asked: object) -> Message:
        plain: dict[str, object] = {"fleet_id": FLEET, "caller": self.caller, "agent_id": agent_id}
        ask = struct_of(Cancel, zone_id=self.zone_id, message_id=message_id, **(plain | asked))
        return _message(await self.talk.submit(ask))

    async def receipt(self, message_id: int, notice: NoticeFailure | None = None) -> Message:
        ask = RecordReceipt(zone_id=self.zone_id, fleet_id=FLEET, message_id=message_id, failure=notice)
        return _message(await self.talk.submit(ask))

    # -- from the side

    def rows(self) -> dict[str, int]:
        return {table: self.keel.side.count(table) for table in TABLES}


def _message(done: MessageOutcome) -> Message:
    assert isinstance(done, Message)
    return done


def acknowledged(side: Side, number: int, to: int = ALICE, zone_id: str = ZONE, fleet_id: int = FLEET) -> None:
    """So many messages that the director sent and `to` has acknowledged, as long service leaves them behind."""
    side.run(
        "insert into messages with recursive n (i) as (select 1 union all select i + 1 from n where i < ?) "
        "select c.zone_id, c.messages + n.i, f.fleet_id, m.agent_id, f.director_agent_id, m.agent_id, 'unicast', "
        "f.created_at, 'input_required', f.created_at, null, 'done long ago', null, 'no_pane' from n, fleet_counters c "
        "join fleets f on f.zone_id = c.zone_id join members m on m.zone_id = c.zone_id and m.fleet_id = f.fleet_id "
        "where c.zone_id = ? and f.fleet_id = ? and m.agent_id = ?",
        *(number, zone_id, fleet_id, to),
    )
    side.run("update fleet_counters set messages = messages + ? where zone_id = ?", number, zone_id)
    # Afterwards, so that it was where a poll looks.
    side.run(
        "update messages set status_state = 'completed', status_timestamp = created_at + task_id "
        "where zone_id = ? and context_id = ? and status_state = 'input_required'",
        *(zone_id, to),
    )
    if not sqlite_path(side.url):
        # As autovacuum does by itself after so many.
        with psycopg.connect(side.url, autocommit=True) as connection:
            connection.execute("vacuum (analyze) messages")


@contextmanager
def failing(side: Side, write: str, table: str, when: str = "1 = 1") -> Iterator[None]:
    """While it lasts the database refuses these writes: `write` is insert or update."""
    if sqlite_path(side.url):
        side.run(
            f"create trigger fails before {write} on {table} when {when} begin select raise(abort, 'injected'); end"
        )
    else:
        side.run(
            "create function fails() returns trigger language plpgsql as "
            "$$ begin raise exception 'injected' using errcode = 'check_violation'; end $$"
        )
        side.run(f"create trigger fails before {write} on {table} for each row when ({when}) execute function fails()")
    try:
        yield
    finally:
        side.run("drop trigger fails" if sqlite_path(side.url) else f"drop trigger fails on {table}")
        if not sqlite_path(side.url):
            side.run("drop function fails()")
