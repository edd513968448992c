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
EVERYTHING = "*"
TEST = "webhook.test"
DISABLED = "webhook.disabled"
USUAL = (STATUS_CHANGED, ALERT)
FAMILIES = ("task.", "agent.")
"""What `*` is about."""
KNOWN = (STATUS_CHANGED, ALERT, EVERYTHING, *(kind for kind in log_view.KINDS if kind.startswith(FAMILIES)), DISABLED)
"""All that may be named."""


def alert_of(kind: str, data: Mapping[str, object]) -> str | None:
    """What somebody ought to look at, if that is what an event tells."""
    if kind == "agent.stale":
        return "agent_stale"
    if kind == DISABLED:
        return "webhook_disabled"
    if not kind.startswith("task."):
        return None
    if data.get("reason") == "dependency_cycle":
        return "dependency_cycle"
    return "retries_exhausted" if data.get("exhausted") is True else None


def words_of(kind: str, *, is_change: bool, is_alert: bool) -> frozenset[str]:
    """The words an event bears."""
    words = {EVERYTHING, kind}
    if is_change:
        words.add(STATUS_CHANGED)
    if is_alert:
        words.add(ALERT)
    return frozenset(words)
