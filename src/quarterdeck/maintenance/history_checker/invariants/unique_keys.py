"""A key never has two live sessions, two invocations or two tasks.

The responses show which sessions a key had, and the key table shows the last one. The event log shows when each
session was live. A key can have several sessions one after another, but never two live ones. The key of an invocation
or a task belongs to one invocation or task forever.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.model import Evidence, Op, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.session_replay import SessionReplay, readable_events

NAME = "one-key"
ScopedKey = tuple[str, str, str]
"""(zone, application or service, key)"""


def check(evidence: Evidence) -> Iterator[Violation]:
    yield from _check_created_once(evidence)
    invocation_ids = {(row.zone_id, row.service_id, row.idempotency_key): row.id for row in evidence.rows.invocations}
    yield from _check_permanent_keys(evidence, Op.INVOKE, "invocations", invocation_ids)
    # The rows of tasks do not contain their keys.
    yield from _check_permanent_keys(evidence, Op.TASK_CREATE, "tasks", {})
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


def _check_permanent_keys(
    evidence: Evidence, op: Op, noun: str, ids_by_key: dict[ScopedKey, str]
) -> Iterator[Violation]:
    """Check keys that belong to one object forever."""
    for call in evidence.successful_calls(op):
        key, created_id = call.request.idempotency_key, call.response.id
        if key is None or created_id is None:
            continue
        owner = call.request.service_id if op is Op.INVOKE else call.request.application_id
        first_id = ids_by_key.setdefault((call.zone, owner or "", key), created_id)
        if first_id != created_id:
            detail = f"key {key!r} created two {noun}, {first_id} and {created_id}"
            yield Violation(NAME, call.zone, created_id, detail, call=call.location)


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
