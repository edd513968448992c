"""Which entries an event becomes. A pure table: streams, fields and signature are the contract's.

| event                              | stream                          | `event`                          |
|------------------------------------|---------------------------------|----------------------------------|
| session.spawn, suspend, resume, terminate | `caracal.agents.lifecycle` | spawn, suspend, resume, terminate |
| session.terminate                  | `caracal.sessions.revoke`       | unless its sid is still in use    |
| invocation.created, started, …     | `caracal.invocations.lifecycle` | as the event                      |
| delegation.create, revoke, expire  | `caracal.delegations.invalidate` | edge_create, edge_revoke, edge_expire |
| the same                           | `caracal.policy.invalidate`     |                                  |

Every entry has `outbox_id` and `dedupe_key`, which are its own for ever and the same however often it is sent: they are
made of the id of the event. One occurrence is one event, so suspending twice is two entries.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from quarterdeck.bus.redis.interfaces import Entry
from quarterdeck.core.clock import iso
from quarterdeck.core.log_event import Occurrence

AGENTS = "caracal.agents.lifecycle"
INVOCATIONS = "caracal.invocations.lifecycle"
DELEGATIONS = "caracal.delegations.invalidate"
REVOCATIONS = "caracal.sessions.revoke"
POLICIES = "caracal.policy.invalidate"
STREAMS = (AGENTS, INVOCATIONS, DELEGATIONS, REVOCATIONS, POLICIES)
SIGNATURE = "_sig"

_OF_SESSIONS = {f"session.{verb}": verb for verb in ("spawn", "suspend", "resume", "terminate")}
_OF_INVOCATIONS = {
    f"invocation.{state}" for state in ("created", "started", "succeeded", "failed", "timed_out", "canceled", "dead")
}
_OF_EDGES = {f"delegation.{verb}": f"edge_{verb}" for verb in ("create", "revoke", "expire")}

_SESSION = ("application_id", "parent_id", "root_id", "session_sid", "depth", "expires_at", "reason", "cause")
_INVOCATION = (
    "service_id", "application_id", "method", "source_session_id", "target_session_id", "attempt", "reason",
    "available_at", "error",
)  # fmt: skip
_EDGE = ("source_session_id", "target_session_id", "parent_edge_id", "epoch", "scopes", "reason")


Data = Mapping[str, object]
_decode = msgspec.json.Decoder(dict[str, object]).decode


def entries_of(event: Occurrence) -> list[Entry]:
    """What an event is told as, in the order of the event's own entries; nothing, for most types."""
    if (verb := _OF_SESSIONS.get(event.type)) is not None:
        told = _of_session(event, verb, _decode(event.data))
    elif event.type in _OF_INVOCATIONS:
        told = _of_invocation(event, _decode(event.data))
    elif (verb := _OF_EDGES.get(event.type)) is not None:
        told = _of_edge(event, verb, _decode(event.data))
    else:
        return []
    return [_entry(event, number, stream, said) for number, (stream, said) in enumerate(told.items())]


def sign(key: bytes, stream: str, fields: Mapping[str, str]) -> str:
    """Over the name of the stream and every other field: `<stream>\\n`, then `k=v\\n` in order of k."""
    said = "".join(f"{name}={fields[name]}\n" for name in sorted(fields) if name != SIGNATURE)
    return hmac.new(key, f"{stream}\n{said}".encode(), hashlib.sha256).hexdigest()


def _of_session(event: Occurrence, verb: str, data: Data) -> dict[str, Data]:
    own = {"event": verb, "agent_session_id": event.subject, **_named(data, _SESSION)}
    told: dict[str, Data] = {AGENTS: own}
    if verb == "terminate" and not data.get("sid_in_use"):
        revoked = {"session_id": data.get("session_sid"), "agent_session_id": event.subject}
        told[REVOCATIONS] = {**revoked, "reason": data.get("reason")}
    return told


def _of_invocation(event: Occurrence, data: Data) -> dict[str, Data]:
    return {INVOCATIONS: {"event": event.type, "invocation_id": event.subject, **_named(data, _INVOCATION)}}


def _of_edge(event: Occurrence, verb: str, data: Data) -> dict[str, Data]:
    own = {"event": verb, "edge_id": event.subject, **_named(data, _EDGE)}
    return {DELEGATIONS: own, POLICIES: {"event": verb, "edge_id": event.subject, "epoch": data.get("epoch")}}


def _named(data: Data, names: tuple[str, ...]) -> Data:
    return {name: data[name] for name in names if name in data}


def _entry(event: Occurrence, number: int, stream: str, said: Data) -> Entry:
    common = {
        "outbox_id": f"{event.id}:{number}",
        "dedupe_key": f"{stream}:{event.id}",
        "zone_id": event.zone_id,
        "pos": event.pos,
        "at": iso(event.at),
        "actor": event.actor,
        "trace": event.trace,
    }
    fields = {name: _flat(value) for name, value in {**said, **common}.items() if value is not None}
    return Entry(event.pos, number, event.id, event.zone_id, stream, event.subject, fields)


def _flat(value: object) -> str:
    """Text as it is; anything else as JSON. So is text with a line break, which callers may put into a reason: what is
    signed is lines of `k=v`, and one field must not be able to pass for two."""
    if isinstance(value, str) and "\n" not in value:
        return value
    return msgspec.json.encode(value).decode()
