"""An agent that is lost (silent for too long), or has ended, begins nothing before it is heard of, or registered,
again."""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.task_model import task_told_by
from quarterdeck.maintenance.history_checker.task_replay import begins

GONE = frozenset({"ERROR", "TERMINATED"})


def judge(evidence: Evidence, promise: str) -> Iterator[Finding]:
    gone: dict[Ref, int] = {}
    """Where each of those ended who have."""
    for event in evidence.log:
        if event.type.startswith("agent.") and event.to_state is not None:
            ref = (event.zone_id, event.subject)
            if event.to_state in GONE:
                gone[ref] = event.pos
            else:
                gone.pop(ref, None)
        elif begins(event) and (told := task_told_by(event)) is not None:
            pos = gone.get((event.zone_id, told.agent_id or ""))
            if pos is not None:
                detail = f"the agent {told.agent_id} began {event.subject}, and was gone since {pos}"
                yield Finding(promise, event.zone_id, event.subject, detail, event.pos)
