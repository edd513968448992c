"""A key never has two live sessions, two invocations or two tasks.

The responses show which sessions a key had, and the key table shows the last one. The event log shows when each
session was live. A key can have several sessions one after another, but never two live ones. The key of an invocation
or a task belongs to one invocation or task forever.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.model import Evidence, Op, RecordedCall, Ref, Violation
from quarterdeck.maintenance.history_checker.replay import SessionReplay, readable_events

NAME = "one-key"
ScopedKey = tuple[str, str, str]
"""(zone, application or service, key)"""


def check(evidence: Evidence) -> Iterator[Violation]:
    yield from _check_created_once(evidence)
    yield from _check_invocations(evidence)
    yield from _check_tasks(evidence)
    keys_by_session: dict[Ref, ScopedKey] = {}
    for session, scoped_key, call in _keyed_sessions(evidence):
        first = keys_by_session.setdefault(session, scoped_key)
        if first != scoped_key:
            detail = f"session {session[1]} was returned for two keys, {first[2]!r} and {scoped_key[2]!r}"
            yield Violation(NAME, session[0], session[1], detail, call=call.location if call else None)
    yield from _check_overlaps(evidence, keys_by_session)


def _keyed_sessions(evidence: Evidence) -> Iterator[tuple[Ref, ScopedKey, RecordedCall | None]]:
    for call in evidence.successful_calls(Op.SPAWN):
        request, session_id = call.request, call.response.id
        if session_id and request.idempotency_key is not None:
            yield (call.zone, session_id), (call.zone, request.application_id or "", request.idempotency_key), call
    for row in evidence.rows.keys:
        yield (row.zone_id, row.subject_id), (row.zone_id, row.application_id, row.key), None


def _check_created_once(evidence: Evidence) -> Iterator[Violation]:
    """Only one response may say that its call created a given object."""
    created: set[tuple[str, str, str]] = set()
    for call in evidence.successful_calls(Op.SPAWN, Op.INVOKE, Op.TASK_CREATE):
        if call.has_created and call.response.id:
            creation = (call.op, call.zone, call.response.id)
            if creation in created:
                detail = f"two responses say that their call created {call.response.id}"
                yield Violation(NAME, call.zone, call.response.id, detail, call=call.location)
            created.add(creation)


def _check_invocations(evidence: Evidence) -> Iterator[Violation]:
    ids_by_key: dict[ScopedKey, str] = {
        (row.zone_id, row.service_id, row.idempotency_key): row.id for row in evidence.rows.invocations
    }
    for call in evidence.successful_calls(Op.INVOKE):
        key, invocation_id = call.request.idempotency_key, call.response.id
        if key is None or invocation_id is None:
            continue
        first_id = ids_by_key.setdefault((call.zone, call.request.service_id or "", key), invocation_id)
        if first_id != invocation_id:
            detail = f"key {key!r} created two invocations, {first_id} and {invocation_id}"
            yield Violation(NAME, call.zone, invocation_id, detail, call=call.location)


def _check_tasks(evidence: Evidence) -> Iterator[Violation]:
    """Check the keys of tasks in the histories only, because the rows do not contain them."""
    ids_by_key: dict[ScopedKey, str] = {}
    for call in evidence.successful_calls(Op.TASK_CREATE):
        key, task_id = call.request.idempotency_key, call.response.id
        if key is None or task_id is None:
            continue
        first_id = ids_by_key.setdefault((call.zone, call.request.application_id or "", key), task_id)
        if first_id != task_id:
            detail = f"key {key!r} created two tasks, {first_id} and {task_id}"
            yield Violation(NAME, call.zone, task_id, detail, call=call.location)


def _check_overlaps(evidence: Evidence, keys_by_session: dict[Ref, ScopedKey]) -> Iterator[Violation]:
    sessions = SessionReplay(evidence)
    session_ids_by_key: dict[ScopedKey, list[str]] = {}
    for event, data in readable_events(evidence):
        sessions.apply(event, data)
        scoped_key = keys_by_session.get((event.zone_id, event.subject)) if event.type == "session.spawn" else None
        if scoped_key is None:
            continue
        for other_id in session_ids_by_key.setdefault(scoped_key, []):
            session = sessions.get(event.zone_id, other_id)
            if session and session.is_live(event.at) and other_id != event.subject:
                detail = (
                    f"key {scoped_key[2]!r} of {scoped_key[1]} had session {event.subject} while {other_id} was live"
                )
                yield Violation(NAME, event.zone_id, event.subject, detail, event.pos)
        session_ids_by_key[scoped_key].append(event.subject)
