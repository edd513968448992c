"""Builds the stream entries for an event. Streams, fields and signature are a public contract.

| event                              | stream                          | `event`                          |
|------------------------------------|---------------------------------|----------------------------------|
| session.spawn, suspend, resume, terminate | `caracal.agents.lifecycle` | spawn, suspend, resume, terminate |
| session.terminate, unless its sid is still in use | `caracal.sessions.revoke` | none              |
| invocation.created, started, …     | `caracal.invocations.lifecycle` | the event type                    |
| delegation.create, revoke, expire  | `caracal.delegations.invalidate` | edge_create, edge_revoke, edge_expire |
| delegation.create, revoke, expire  | `caracal.policy.invalidate`     | edge_create, edge_revoke, edge_expire |

Every entry has an `outbox_id` and a `dedupe_key`. They are built from the event id, so they are unique and stay the
same when the entry is sent again. Each transition is one event, so a session that is suspended twice has two entries.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from quarterdeck.bus.redis.interfaces import SinkEntry
from quarterdeck.core.clock import iso
from quarterdeck.core.log_event import Event

AGENTS = "caracal.agents.lifecycle"
INVOCATIONS = "caracal.invocations.lifecycle"
DELEGATIONS = "caracal.delegations.invalidate"
REVOCATIONS = "caracal.sessions.revoke"
POLICIES = "caracal.policy.invalidate"
STREAMS = (AGENTS, INVOCATIONS, DELEGATIONS, REVOCATIONS, POLICIES)
SIGNATURE = "_sig"

_SESSION_EVENTS = {f"session.{verb}": verb for verb in ("spawn", "suspend", "resume", "terminate")}
_INVOCATION_EVENTS = {
    f"invocation.{state}" for state in ("created", "started", "succeeded", "failed", "timed_out", "canceled", "dead")
}
_DELEGATION_EVENTS = {f"delegation.{verb}": f"edge_{verb}" for verb in ("create", "revoke", "expire")}

_SESSION_FIELDS = ("application_id", "parent_id", "root_id", "session_sid", "depth", "expires_at", "reason", "cause")
_INVOCATION_FIELDS = (
    "service_id", "application_id", "method", "source_session_id", "target_session_id", "attempt", "reason",
    "available_at", "error",
)  # fmt: skip
_DELEGATION_FIELDS = ("source_session_id", "target_session_id", "parent_edge_id", "epoch", "scopes", "reason")


Data = Mapping[str, object]
_decode = msgspec.json.Decoder(dict[str, object]).decode


def build_entries(event: Event) -> list[SinkEntry]:
    """Build the stream entries for an event, numbered from 0. Most event types have none."""
    if (verb := _SESSION_EVENTS.get(event.type)) is not None:
        fields_by_stream = _session_fields(event, verb, _decode(event.data))
    elif event.type in _INVOCATION_EVENTS:
        fields_by_stream = _invocation_fields(event, _decode(event.data))
    elif (verb := _DELEGATION_EVENTS.get(event.type)) is not None:
        fields_by_stream = _delegation_fields(event, verb, _decode(event.data))
    else:
        return []
    return [
        _build_entry(event, index, stream, fields) for index, (stream, fields) in enumerate(fields_by_stream.items())
    ]


def sign(key: bytes, stream: str, fields: Mapping[str, str]) -> str:
    """The HMAC-SHA256 of `<stream>\\n`, followed by `k=v\\n` for each field except the signature, sorted by k."""
    lines = "".join(f"{name}={fields[name]}\n" for name in sorted(fields) if name != SIGNATURE)
    return hmac.new(key, f"{stream}\n{lines}".encode(), hashlib.sha256).hexdigest()


def _session_fields(event: Event, verb: str, data: Data) -> dict[str, Data]:
    lifecycle = {"event": verb, "agent_session_id": event.subject, **_select(data, _SESSION_FIELDS)}
    fields_by_stream: dict[str, Data] = {AGENTS: lifecycle}
    if verb == "terminate" and not data.get("sid_in_use"):
        revoked = {"session_id": data.get("session_sid"), "agent_session_id": event.subject}
        fields_by_stream[REVOCATIONS] = {**revoked, "reason": data.get("reason")}
    return fields_by_stream


def _invocation_fields(event: Event, data: Data) -> dict[str, Data]:
    return {INVOCATIONS: {"event": event.type, "invocation_id": event.subject, **_select(data, _INVOCATION_FIELDS)}}


def _delegation_fields(event: Event, verb: str, data: Data) -> dict[str, Data]:
    invalidation = {"event": verb, "edge_id": event.subject, **_select(data, _DELEGATION_FIELDS)}
    return {DELEGATIONS: invalidation, POLICIES: {"event": verb, "edge_id": event.subject, "epoch": data.get("epoch")}}


def _select(data: Data, names: tuple[str, ...]) -> Data:
    return {name: data[name] for name in names if name in data}


def _build_entry(event: Event, index: int, stream: str, event_fields: Data) -> SinkEntry:
    common = {
        "outbox_id": f"{event.id}:{index}",
        "dedupe_key": f"{stream}:{event.id}",
        "zone_id": event.zone_id,
        "pos": event.pos,
        "at": iso(event.at),
        "actor": event.actor,
        "trace": event.trace,
    }
    fields = {name: _to_text(value) for name, value in {**event_fields, **common}.items() if value is not None}
    return SinkEntry(event.pos, index, event.id, event.zone_id, stream, event.subject, fields)


def _to_text(value: object) -> str:
    """Return a string unchanged, and any other value as JSON.

    A string with a line break, which a caller may send as a reason, is also encoded as JSON: the signed text has one
    line `k=v` per field, and a value must not be able to add a line.
    """
    if isinstance(value, str) and "\n" not in value:
        return value
    return msgspec.json.encode(value).decode()
