"""What an event is told as.

A change of a task's status is told in the published form: `event`, `taskId`, `previousStatus`, `newStatus`,
`workspaceId`, `timestamp`, and beside these what helps to tell it from others. Everything else is told as the log has
it. Nothing here can hold a secret: events hold none.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.log_event import Occurrence
from quarterdeck.domain.webhooks.rules import event_types

_decode = msgspec.json.Decoder(dict[str, object]).decode
_BESIDE = ("reason", "taskType", "agentId", "attempt", "cycle")
"""What of an event's own data a change of status tells."""
_SUBJECTS = {"task": "taskId", "agent": "agentId", "webhook": "webhookId"}


class Message(msgspec.Struct, frozen=True):
    event: str
    words: frozenset[str]
    """An endpoint that names one of these hears of it."""
    body: str


def message_of(event: Occurrence) -> Message | None:
    """None for what is told to nobody."""
    family = event.type.partition(".")[0]
    if not event.type.startswith(event_types.FAMILIES) and event.type != event_types.DISABLED:
        return None
    data = _decode(event.data)
    alert = event_types.alert_of(event.type, data)
    is_change = family == "task" and event.from_state is not None and event.from_state != event.to_state
    words = event_types.words_of(event.type, is_change=is_change, is_alert=alert is not None)
    told: dict[str, object] = {"event": event_types.STATUS_CHANGED if is_change else event.type}
    told[_SUBJECTS[family]] = event.subject
    if is_change:
        told |= {"previousStatus": event.from_state, "newStatus": event.to_state}
    told |= {"workspaceId": event.zone_id, "timestamp": iso(event.at), "eventId": event.id, "type": event.type}
    if is_change:
        told |= {name: data[name] for name in _BESIDE if data.get(name) is not None}
    else:
        told["data"] = data
    if alert is not None:
        told["alert"] = alert
    return Message(str(told["event"]), words, msgspec.json.encode(told).decode())


def trial(zone_id: str, endpoint_id: str, delivery_id: str, now: Millis) -> Message:
    """What is sent to see whether anything arrives."""
    told = {
        "event": event_types.TEST,
        "webhookId": endpoint_id,
        "workspaceId": zone_id,
        "timestamp": iso(now),
        "eventId": delivery_id,
        "type": event_types.TEST,
        "data": {},
    }
    return Message(event_types.TEST, frozenset(), msgspec.json.encode(told).decode())
