"""Which types an endpoint may name, and which types an event matches.

An endpoint gets the events that match at least one of its types:

| type                  | matching events                                                            |
|-----------------------|----------------------------------------------------------------------------|
| `task.status_changed` | every event that changes the status of a task                              |
| `alert`               | retries exhausted, a dependency cycle, a stale agent, a disabled endpoint  |
| `task.created`, …     | the log events of this type                                                |
| `*`                   | every event of tasks and agents, and every alert                           |

An event that matches several types is delivered once.
"""

from __future__ import annotations

from collections.abc import Mapping

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
