"""What was refused left nothing behind.

A key under which clients have only ever met refusals stands for nothing: a refusal binds no key. This takes the
histories at their word that nobody else used those keys; a conflict, by which somebody else is known to have, clears
the key. The same goes for the ids of tasks that their makers chose.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Op, Outcome

NAME = "refused"
Scope = tuple[str, str, str]
CONFLICT = 422
TAKEN = "task_exists"


def judge(evidence: Evidence) -> Iterator[Finding]:
    spawns = _only_refused(evidence, Op.SPAWN)
    for key in evidence.rows.keys:
        if call := spawns.get((key.zone_id, key.application_id, key.key)):
            yield _found(call, key.key, key.subject_id)
    invocations = _only_refused(evidence, Op.INVOKE)
    for row in evidence.rows.invocations:
        if call := invocations.get((row.zone_id, row.service_id, row.idempotency_key)):
            yield _found(call, row.idempotency_key, row.id)
    tasks = _only_refused_names(evidence)
    for task in evidence.rows.tasks:
        if call := tasks.get((task.zone_id, task.id)):
            detail = f"every making of the task {task.id} was refused, and it is there"
            yield Finding(NAME, task.zone_id, task.id, detail, call=call.where)


def _only_refused(evidence: Evidence, op: Op) -> dict[Scope, Call]:
    refused: dict[Scope, Call] = {}
    cleared: set[Scope] = set()
    for call in evidence.history:
        key = call.asked.idempotency_key
        if call.op != op or key is None:
            continue
        owner = call.asked.application_id if op is Op.SPAWN else call.asked.service_id
        scope = (call.zone, owner or "", key)
        if call.outcome is Outcome.REFUSED and call.status != CONFLICT:
            refused.setdefault(scope, call)
        else:
            cleared.add(scope)
    return {scope: call for scope, call in refused.items() if scope not in cleared}


def _only_refused_names(evidence: Evidence) -> dict[tuple[str, str], Call]:
    """Of tasks whose ids their makers chose."""
    refused: dict[tuple[str, str], Call] = {}
    cleared: set[tuple[str, str]] = set()
    for call in evidence.history:
        if call.op != Op.TASK_CREATE or call.asked.id is None:
            continue
        name = (call.zone, call.asked.id)
        if call.outcome is Outcome.REFUSED and call.said.error != TAKEN:
            refused.setdefault(name, call)
        else:
            cleared.add(name)
    return {name: call for name, call in refused.items() if name not in cleared}


def _found(call: Call, key: str, subject: str) -> Finding:
    detail = f"every {call.op} under the key {key!r} was refused, and it stands for {subject}"
    return Finding(NAME, call.zone, subject, detail, call=call.where)
