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
"""(zone, application or service, key)"""
KEY_CONFLICT_STATUS = 422
TASK_EXISTS = "task_exists"


def check(evidence: Evidence) -> Iterator[Violation]:
    refused_spawns = _only_refused_keys(evidence, Op.SPAWN)
    for key in evidence.rows.keys:
        if call := refused_spawns.get((key.zone_id, key.application_id, key.key)):
            yield _violation(call, key.key, key.subject_id)
    refused_invocations = _only_refused_keys(evidence, Op.INVOKE)
    for row in evidence.rows.invocations:
        if call := refused_invocations.get((row.zone_id, row.service_id, row.idempotency_key)):
            yield _violation(call, row.idempotency_key, row.id)
    refused_tasks = _only_refused_task_ids(evidence)
    for task in evidence.rows.tasks:
        if call := refused_tasks.get((task.zone_id, task.id)):
            detail = f"every request to create task {task.id} was refused, but it exists"
            yield Violation(NAME, task.zone_id, task.id, detail, call=call.location)


def _only_refused_keys(evidence: Evidence, op: Op) -> dict[ScopedKey, RecordedCall]:
    refused: dict[ScopedKey, RecordedCall] = {}
    excluded: set[ScopedKey] = set()
    for call in evidence.history:
        key = call.request.idempotency_key
        if call.op != op or key is None:
            continue
        owner = call.request.application_id if op is Op.SPAWN else call.request.service_id
        scoped_key = (call.zone, owner or "", key)
        if call.outcome is Outcome.REFUSED and call.status != KEY_CONFLICT_STATUS:
            refused.setdefault(scoped_key, call)
        else:
            excluded.add(scoped_key)
    return {scoped_key: call for scoped_key, call in refused.items() if scoped_key not in excluded}


def _only_refused_task_ids(evidence: Evidence) -> dict[tuple[str, str], RecordedCall]:
    """Task ids that clients chose, and whose creation was always refused."""
    refused: dict[tuple[str, str], RecordedCall] = {}
    excluded: set[tuple[str, str]] = set()
    for call in evidence.history:
        if call.op != Op.TASK_CREATE or call.request.id is None:
            continue
        ref = (call.zone, call.request.id)
        if call.outcome is Outcome.REFUSED and call.response.error != TASK_EXISTS:
            refused.setdefault(ref, call)
        else:
            excluded.add(ref)
    return {ref: call for ref, call in refused.items() if ref not in excluded}


def _violation(call: RecordedCall, key: str, subject: str) -> Violation:
    detail = f"every {call.op} with the key {key!r} was refused, but the key belongs to {subject}"
    return Violation(NAME, call.zone, subject, detail, call=call.location)
