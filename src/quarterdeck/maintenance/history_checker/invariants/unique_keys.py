"""No key had two live sessions.

Which session a key stood for is known by the answers that clients got for it, and by the table of keys, which has the
last one. When each of them lived is known by the log. A key may stand for one session after another, never for two that
live at once; and an invocation's key stands for one invocation for ever, as a task's does for one task.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Op, Ref
from quarterdeck.maintenance.history_checker.replay import Lives, reading

NAME = "one-key"
Scope = tuple[str, str, str]
"""(zone, application or service, key)"""


def judge(evidence: Evidence) -> Iterator[Finding]:
    yield from _made_twice(evidence)
    yield from _invocations(evidence)
    yield from _tasks(evidence)
    scopes: dict[Ref, Scope] = {}
    for session, scope, call in _bound(evidence):
        first = scopes.setdefault(session, scope)
        if first != scope:
            detail = f"the session {session[1]} was the answer to two keys, {first[2]!r} and {scope[2]!r}"
            yield Finding(NAME, session[0], session[1], detail, call=call.where if call else None)
    yield from _overlaps(evidence, scopes)


def _bound(evidence: Evidence) -> Iterator[tuple[Ref, Scope, Call | None]]:
    for call in evidence.done(Op.SPAWN):
        asked, made = call.asked, call.said.id
        if made and asked.idempotency_key is not None:
            yield (call.zone, made), (call.zone, asked.application_id or "", asked.idempotency_key), call
    for row in evidence.rows.keys:
        yield (row.zone_id, row.subject_id), (row.zone_id, row.application_id, row.key), None


def _made_twice(evidence: Evidence) -> Iterator[Finding]:
    """Of all who are told of one thing, one is told that it made it."""
    made: set[tuple[str, str, str]] = set()
    for call in evidence.done(Op.SPAWN, Op.INVOKE, Op.TASK_CREATE):
        if call.created and call.said.id:
            own = (call.op, call.zone, call.said.id)
            if own in made:
                detail = f"two calls were told that they made {call.said.id}"
                yield Finding(NAME, call.zone, call.said.id, detail, call=call.where)
            made.add(own)


def _invocations(evidence: Evidence) -> Iterator[Finding]:
    found: dict[Scope, str] = {
        (row.zone_id, row.service_id, row.idempotency_key): row.id for row in evidence.rows.invocations
    }
    for call in evidence.done(Op.INVOKE):
        key, made = call.asked.idempotency_key, call.said.id
        if key is None or made is None:
            continue
        known = found.setdefault((call.zone, call.asked.service_id or "", key), made)
        if known != made:
            detail = f"the key {key!r} made two invocations, {known} and {made}"
            yield Finding(NAME, call.zone, made, detail, call=call.where)


def _tasks(evidence: Evidence) -> Iterator[Finding]:
    """By the histories alone, of which each belongs to one application."""
    found: dict[Scope, str] = {}
    for call in evidence.done(Op.TASK_CREATE):
        key, made = call.asked.idempotency_key, call.said.id
        if key is None or made is None:
            continue
        known = found.setdefault((call.zone, call.asked.application_id or "", key), made)
        if known != made:
            detail = f"the key {key!r} made two tasks, {known} and {made}"
            yield Finding(NAME, call.zone, made, detail, call=call.where)


def _overlaps(evidence: Evidence, scopes: dict[Ref, Scope]) -> Iterator[Finding]:
    lives = Lives(evidence)
    spawned: dict[Scope, list[str]] = {}
    for event, told in reading(evidence):
        lives.feed(event, told)
        scope = scopes.get((event.zone_id, event.subject)) if event.type == "session.spawn" else None
        if scope is None:
            continue
        for other in spawned.setdefault(scope, []):
            life = lives.get(event.zone_id, other)
            if life and life.is_live(event.at) and other != event.subject:
                detail = f"the key {scope[2]!r} of {scope[1]} had the session {event.subject} while {other} lived"
                yield Finding(NAME, event.zone_id, event.subject, detail, event.pos)
        spawned[scope].append(event.subject)
