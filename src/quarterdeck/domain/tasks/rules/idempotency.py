"""What idempotency keys stand for here: a task that was made, what was said of one, tasks that were given out."""

from __future__ import annotations

from quarterdeck.core.idempotency import Key
from quarterdeck.domain.tasks.model.commands import Create, Progress

CREATING = "task.create"
PROGRESSING = "task.progress"
CLAIMING = "task.claim"


def key_of(ask: Create | Progress) -> Key | None:
    if ask.key is None or ask.caller is None:
        return None
    operation, key = (CREATING, ask.key) if isinstance(ask, Create) else (PROGRESSING, f"{ask.id} {ask.key}")
    return Key(ask.zone_id, ask.caller.client_id, operation, key)


def key_of_claim(zone_id: str, agent_id: str | None, claim_id: str | None) -> Key | None:
    """An agent's own, whoever claims for it."""
    return None if claim_id is None else Key(zone_id, "", CLAIMING, f"{agent_id} {claim_id}")
