"""Which events an endpoint gets, and the body of a delivery.

An endpoint gets the events that match at least one of its types:

| type                  | matching events                                                            |
|-----------------------|----------------------------------------------------------------------------|
| `task.status_changed` | every event that changes the status of a task                              |
| `alert`               | retries exhausted, a dependency cycle, a stale agent, a disabled endpoint  |
| `task.created`, …     | the log events of this type                                                |
| `*`                   | every event of tasks and agents, and every alert                           |

An event that matches several types is delivered once.

The body for a task's status change has a published format: `event`, `taskId`, `previousStatus`, `newStatus`,
`workspaceId`, `timestamp`, and a few more fields. For all other events, it contains the data of the log event. Bodies
contain no secrets, because events contain none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.log_event import Event
from quarterdeck.domain.coordination.rules import log_view

STATUS_CHANGED = "task.status_changed"
ALERT = "alert"
ALL_EVENTS = "*"
TEST = "webhook.test"
DISABLED = "webhook.disabled"
DEFAULT_TYPES = (STATUS_CHANGED, ALERT)
EVENT_PREFIXES = ("task.", "agent.")
"""`*` matches all events with these prefixes, and `DISABLED`."""
ALLOWED_TYPES = (
    STATUS_CHANGED,
    ALERT,
    ALL_EVENTS,
    *(event_type for event_type in log_view.EVENT_LEVELS if event_type.startswith(EVENT_PREFIXES)),
    DISABLED,
)
"""All types that an endpoint may name."""
_decode = msgspec.json.Decoder(dict[str, object]).decode
_STATUS_CHANGE_FIELDS = ("reason", "taskType", "agentId", "attempt", "cycle")
"""Fields that the body of a status change copies from the event's data."""
_SUBJECT_FIELDS = {"task": "taskId", "agent": "agentId", "webhook": "webhookId"}


def alert_type(event_type: str, data: Mapping[str, object]) -> str | None:
    """The kind of alert that an event is, or None."""
    if event_type == "agent.stale":
        return "agent_stale"
    if event_type == DISABLED:
        return "webhook_disabled"
    if not event_type.startswith("task."):
        return None
    if data.get("reason") == "dependency_cycle":
        return "dependency_cycle"
    return "retries_exhausted" if data.get("exhausted") is True else None


def matching_types(event_type: str, *, is_change: bool, is_alert: bool) -> frozenset[str]:
    """All types that match an event."""
    types = {ALL_EVENTS, event_type}
    if is_change:
        types.add(STATUS_CHANGED)
    if is_alert:
        types.add(ALERT)
    return frozenset(types)


class Payload(msgspec.Struct, frozen=True):
    event: str
    types: frozenset[str]
    """The types that match the event."""
    body: str


def build_payload(event: Event) -> Payload | None:
    """None for events that are not delivered."""
    family = event.type.partition(".")[0]
    if not event.type.startswith(EVENT_PREFIXES) and event.type != DISABLED:
        return None
    data = _decode(event.data)
    alert = alert_type(event.type, data)
    is_change = family == "task" and event.from_state is not None and event.from_state != event.to_state
    types = matching_types(event.type, is_change=is_change, is_alert=alert is not None)
    body: dict[str, object] = {"event": STATUS_CHANGED if is_change else event.type}
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
        "event": TEST,
        "webhookId": endpoint_id,
        "workspaceId": zone_id,
        "timestamp": iso(now),
        "eventId": delivery_id,
        "type": TEST,
        "data": {},
    }
    return Payload(TEST, frozenset(), msgspec.json.encode(body).decode())
