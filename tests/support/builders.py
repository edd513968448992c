"""Commands and rows for tests. Every field has a default."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions.model import Session, Spawn, State
from quarterdeck.domain.sessions.rules.admission import Count, CountKey, SpawnBatchInput
from quarterdeck.domain.zones.model import CEILINGS, Limits, ZoneAdmissionState

ZONE = "z"
APP = "app"
NOW = 1_000_000_000
STATE_AFTER_EVENT = {
    "session.terminate": State.TERMINATED,
    "session.suspend": State.SUSPENDED,
    "session.resume": State.ACTIVE,
}
"""The state that each session event leads to, for tests that emit events without a session."""
MAX_LIMITS = Limits(**CEILINGS)
"""Limits that never refuse anything, unless a test lowers one of them."""
_numbers = itertools.count(1)


def caller(client_id: str = APP, *scopes: str, session_id: str | None = None, zone_id: str = ZONE) -> Caller:
    return Caller("tester", client_id, zone_id, frozenset(scopes), "sid", session_id)


def admin(zone_id: str = ZONE) -> Caller:
    """A caller who may act for every application of the zone, for tests that are not about ownership."""
    return caller("console", COORDINATOR_ADMIN, zone_id=zone_id)


def spawn_command(zone_id: str = ZONE, **fields: object) -> Spawn:
    """A spawn by the zone's administrator, with these fields."""
    defaults: dict[str, object] = {
        "id": new_id(),
        "zone_id": zone_id,
        "caller": admin(zone_id),
        "application_id": APP,
        "session_sid": "sid",
    }
    return msgspec.convert(defaults | fields, Spawn, from_attributes=True)


def session_row(**fields: object) -> Session:
    """A row that is live at NOW: a child of `parent` if it is given, otherwise a root."""
    number = next(_numbers)
    parent = fields.pop("parent", None)
    assert parent is None or isinstance(parent, Session)
    session_id = str(fields.get("id", f"s{number}"))
    defaults: dict[str, object] = {
        "id": session_id,
        "zone_id": parent.zone_id if parent else ZONE,
        "application_id": APP,
        "parent_id": parent.id if parent else None,
        "root_id": parent.root_id if parent else session_id,
        "session_sid": "sid",
        "kind": "instance",
        "status": State.ACTIVE,
        "depth": parent.depth + 1 if parent else 0,
        "capabilities": "[]",
        "metadata": "{}",
        "ttl_seconds": 3_600,
        "limits": "{}",
        "spawned_at": NOW - 1_000,
        "expires_at": NOW + 1_000_000,
        "suspended_at": None,
        "terminated_at": None,
        "termination_reason": None,
        "created_at": NOW - 1_000,
        "updated_at": NOW - 1_000,
        "held": 0,
        "cascade_id": None,
    }
    row = defaults | fields
    return msgspec.convert([row[name] for name in Session.__struct_fields__], Session)


def spawn_input(
    *sessions: Session,
    limits: Limits = MAX_LIMITS,
    counts: Mapping[CountKey, Count] | None = None,
    frozen: bool = False,
    now: int = NOW,
) -> SpawnBatchInput:
    """The input of a spawn batch in ZONE with these sessions, of parents and of callers."""
    sessions_by_ref = {(row.zone_id, row.id): row for row in sessions}
    return SpawnBatchInput(
        now=now,
        zones={ZONE: ZoneAdmissionState(limits, frozen)},
        sessions=sessions_by_ref,
        caller_sessions=sessions_by_ref,
        counts=counts or {},
    )
