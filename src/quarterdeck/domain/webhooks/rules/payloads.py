"""The body of a delivery.

The body for a task's status change has a published format: `event`, `taskId`, `previousStatus`, `newStatus`,
`workspaceId`, `timestamp`, and a few more fields. For all other events, it contains the data of the log event. Bodies
contain no secrets, because events contain none.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.log_event import LogEvent
from quarterdeck.domain.webhooks.rules import event_types

_decode = msgspec.json.Decoder(dict[str, object]).decode
_STATUS_CHANGE_FIELDS = ("reason", "taskType", "agentId", "attempt", "cycle")
"""Fields that the body of a status change copies from the event's data."""
_SUBJECT_FIELDS = {"task": "taskId", "agent": "agentId", "webhook": "webhookId"}


class Payload(msgspec.Struct, frozen=True):
    event: str
    types: frozenset[str]
    """The types that match the event."""
    body: str


def build_payload(event: LogEvent) -> Payload | None:
    """None for events that are not delivered."""
    family = event.type.partition(".")[0]
    if not event.type.startswith(event_types.EVENT_PREFIXES) and event.type != event_types.DISABLED:
        return None
    data = _decode(event.data)
    alert = event_types.alert_type(event.type, data)
    is_change = family == "task" and event.from_state is not None and event.from_state != event.to_state
    types = event_types.matching_types(event.type, is_change=is_change, is_alert=alert is not None)
    body: dict[str, object] = {"event": event_types.STATUS_CHANGED if is_change else event.type}
    body[_SUBJECT_FIELDS[family]] = event.subject
    if is_change:
        body |= {"previousStatus": event.from_state, "newStatus": event.to_state}
    body |= {"workspaceId": event.zone_id, "timestamp": iso(event.at), "eventId": event.id, "type": event.type}
    if is_change:
        body |= {name: data[name] for name in _STATUS_CHANGE_FIELDS if data.get(name) is not None}
    else:
        body["data"] = data
    if alert is not None:
        body["alert"] = alert
    return Payload(str(body["event"]), types, msgspec.json.encode(body).decode())


def build_test_payload(zone_id: str, endpoint_id: str, delivery_id: str, now: Millis) -> Payload:
    body = {
        "event": event_types.TEST,
        "webhookId": endpoint_id,
        "workspaceId": zone_id,
        "timestamp": iso(now),
        "eventId": delivery_id,
        "type": event_types.TEST,
        "data": {},
    }
    return Payload(event_types.TEST, frozenset(), msgspec.json.encode(body).decode())
