"""Idempotency keys of creates, progress reports and claims."""

from __future__ import annotations

from quarterdeck.core.idempotency import Key
from quarterdeck.domain.tasks.model.commands import Create, Progress

CREATE_OPERATION = "task.create"
PROGRESS_OPERATION = "task.progress"
CLAIM_OPERATION = "task.claim"


def command_key(command: Create | Progress) -> Key | None:
    if command.idempotency_key is None or command.caller is None:
        return None
    operation, key = (
        (CREATE_OPERATION, command.idempotency_key)
        if isinstance(command, Create)
        else (PROGRESS_OPERATION, f"{command.id} {command.idempotency_key}")
    )
    return Key(command.zone_id, command.caller.client_id, operation, key)


def claim_key(zone_id: str, agent_id: str | None, claim_id: str | None) -> Key | None:
    """The idempotency key of a claim id. It is scoped to the agent, not to the application that sends the claim."""
    return None if claim_id is None else Key(zone_id, "", CLAIM_OPERATION, f"{agent_id} {claim_id}")
