"""A refused request stores nothing.

A key whose requests were all refused must not be in use: a refused request does not use up its key. This assumes that
only the recorded clients use these keys. A key conflict shows that another client uses the key, so the key is not
checked. The same applies to task ids that clients chose.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Evidence, Op, Outcome, RecordedCall, Violation

NAME = "refused"
ScopedKey = tuple[str, str, str]
"""(zone, application or service, key), or (zone, "", id) for a task."""
KEY_CONFLICT_STATUS = 422
TASK_EXISTS = "task_exists"


def check(evidence: Evidence) -> Iterator[Violation]:
    refused_spawns = _only_refused(evidence, Op.SPAWN)
    for key in evidence.rows.keys:
        if call := refused_spawns.get((key.zone_id, key.application_id, key.key)):
            yield _violation(call, key.key, key.subject_id)
    refused_invocations = _only_refused(evidence, Op.INVOKE)
    for row in evidence.rows.invocations:
        if call := refused_invocations.get((row.zone_id, row.service_id, row.idempotency_key)):
            yield _violation(call, row.idempotency_key, row.id)
    refused_tasks = _only_refused(evidence, Op.TASK_CREATE)
    for task in evidence.rows.tasks:
        if call := refused_tasks.get((task.zone_id, "", task.id)):
            detail = f"every request to create task {task.id} was refused, but it exists"
            yield Violation(NAME, task.zone_id, task.id, detail, call=call.location)


def _only_refused(evidence: Evidence, op: Op) -> dict[ScopedKey, RecordedCall]:
    """The keys, or the task ids that clients chose, whose requests were all refused."""
    refused: dict[ScopedKey, RecordedCall] = {}
    excluded: set[ScopedKey] = set()
    for call in evidence.history:
        owner, key = _owner_and_key(call)
        if call.op != op or key is None:
            continue
        is_conflict = call.response.error == TASK_EXISTS if op is Op.TASK_CREATE else call.status == KEY_CONFLICT_STATUS
        if call.outcome is Outcome.REFUSED and not is_conflict:
            refused.setdefault((call.zone, owner or "", key), call)
        else:
            excluded.add((call.zone, owner or "", key))
    return {scoped_key: call for scoped_key, call in refused.items() if scoped_key not in excluded}


def _owner_and_key(call: RecordedCall) -> tuple[str | None, str | None]:
    if call.op == Op.TASK_CREATE:
        return None, call.request.id
    owner = call.request.service_id if call.op == Op.INVOKE else call.request.application_id
    return owner, call.request.idempotency_key


def _violation(call: RecordedCall, key: str, subject: str) -> Violation:
    detail = f"every {call.op} with the key {key!r} was refused, but the key belongs to {subject}"
    return Violation(NAME, call.zone, subject, detail, call=call.location)
