"""What an endpoint may hear of, and what an event counts as.

An endpoint names words, an event bears words, and it hears of the events with which it shares one:

| word                  | events that bear it                                                            |
|-----------------------|---------------------------------------------------------------------------------|
| `task.status_changed` | every event by which a task comes from one status to another                     |
| `alert`               | retries exhausted, a dependency cycle, a stale agent, a disabled endpoint         |
| `task.created`, …     | the events of the log of this type                                               |
| `*`                   | every event of tasks and agents, and every alert                                 |

However many words they share, it is one event and one delivery.
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
"""What `*` is about."""
ALLOWED_TYPES = (
    STATUS_CHANGED,
    ALERT,
    ALL_EVENTS,
    *(event_type for event_type in log_view.EVENT_LEVELS if event_type.startswith(EVENT_PREFIXES)),
    DISABLED,
)
"""All that may be named."""


def alert_type(event_type: str, data: Mapping[str, object]) -> str | None:
    """What somebody ought to look at, if that is what an event tells."""
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
    """The words an event bears."""
    types = {ALL_EVENTS, event_type}
    if is_change:
        types.add(STATUS_CHANGED)
    if is_alert:
        types.add(ALERT)
    return frozenset(types)
