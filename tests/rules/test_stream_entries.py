"""The Redis stream entries of an event: streams, fields and signature as published."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.bus.redis.stream_entries import (
    AGENTS,
    DELEGATIONS,
    INVOCATIONS,
    POLICIES,
    REVOCATIONS,
    STREAMS,
    build_entries,
    sign,
)
from quarterdeck.engine.event_log import Event

KEY = b"sixteen bytes and more"


def event(kind: str, subject: str = "s1", pos: int = 7, /, **data: object) -> Event:
    text = msgspec.json.encode(data).decode()
    return Event(pos, f"e{pos}", "z", kind, subject, "user-1", None, None, text, None, 1_767_323_045_678)


def entries_of(kind: str, **data: object) -> dict[str, dict[str, str]]:
    return {entry.stream: dict(entry.fields) for entry in build_entries(event(kind, **data))}


COMMON = {"zone_id": "z", "pos": "7", "at": "2026-01-02T03:04:05.678Z", "actor": "user-1"}


@pytest.mark.parametrize("verb", ["spawn", "suspend", "resume"])
def test_session_event_becomes_an_agents_entry(verb: str) -> None:
    data = {"application_id": "app", "parent_id": None, "root_id": "s1", "session_sid": "sid", "depth": 0}
    assert entries_of(f"session.{verb}", **data) == {
        AGENTS: {
            "event": verb,
            "agent_session_id": "s1",
            "application_id": "app",
            "root_id": "s1",
            "session_sid": "sid",
            "depth": "0",
            "outbox_id": "e7:0",
            "dedupe_key": f"{AGENTS}:e7",
            **COMMON,
        }
    }


def test_session_termination_has_its_reason_and_revokes_its_sid() -> None:
    entries = entries_of("session.terminate", reason="requested", cause="s0", session_sid="sid", root_id="s0")
    assert entries.keys() == {AGENTS, REVOCATIONS}
    assert (entries[AGENTS]["event"], entries[AGENTS]["reason"]) == ("terminate", "requested")
    assert entries[REVOCATIONS] == {
        "session_id": "sid",
        "agent_session_id": "s1",
        "reason": "requested",
        "outbox_id": "e7:1",
        "dedupe_key": f"{REVOCATIONS}:e7",
        **COMMON,
    }


def test_sid_in_use_is_not_revoked() -> None:
    data = {"reason": "x", "session_sid": "sid"}
    assert entries_of("session.terminate", sid_in_use=True, **data).keys() == {AGENTS}
    assert entries_of("session.terminate", sid_in_use=False, **data).keys() == {AGENTS, REVOCATIONS}
    assert "sid_in_use" not in entries_of("session.terminate", sid_in_use=False, **data)[AGENTS]


@pytest.mark.parametrize("state", ["created", "started", "succeeded", "failed", "timed_out", "canceled", "dead"])
def test_invocation_entry_has_the_event_type_as_its_name(state: str) -> None:
    data = {"service_id": "v", "attempt": 2, "error": {"code": "e"}, "available_at": None}
    [entry] = entries_of(f"invocation.{state}", **data).items()
    stream, fields = entry
    assert stream == INVOCATIONS
    assert fields["event"] == f"invocation.{state}"
    assert fields["invocation_id"] == "s1"
    assert (fields["service_id"], fields["attempt"], fields["error"]) == ("v", "2", '{"code":"e"}')
    assert "available_at" not in fields


@pytest.mark.parametrize("verb", ["create", "revoke", "expire"])
def test_delegation_change_invalidates_the_edge_with_its_epoch_and_policies(verb: str) -> None:
    data = {"source_session_id": "a", "target_session_id": "b", "epoch": 12, "scopes": ["x", "y"]}
    entries = entries_of(f"delegation.{verb}", **data)
    assert entries.keys() == {DELEGATIONS, POLICIES}
    edge = entries[DELEGATIONS]
    assert (edge["event"], edge["edge_id"], edge["epoch"]) == (f"edge_{verb}", "s1", "12")
    assert (edge["source_session_id"], edge["target_session_id"]) == ("a", "b")
    assert edge["scopes"] == '["x","y"]'
    assert entries[POLICIES]["zone_id"] == "z"


@pytest.mark.parametrize(
    "kind",
    ["zone.create", "zone.freeze", "cascade.begin", "invocation.retried", "invocation.released", "key.create",
     "invocation.cancel_requested", "service.register", "session.unknown", "sessionXspawn"],
)  # fmt: skip
def test_other_events_become_no_entry(kind: str) -> None:
    assert build_entries(event(kind)) == []


def test_each_entry_has_its_own_stable_keys() -> None:
    data = {"reason": "x", "session_sid": "sid"}
    kinds = ("session.suspend", "session.terminate", "delegation.revoke") * 2
    events = [event(kind, "same", pos, **data) for pos, kind in enumerate(kinds, 1)]
    entries = [entry for log_event in events for entry in build_entries(log_event)]
    assert len(entries) == 10
    for name in ("outbox_id", "dedupe_key"):
        assert len({entry.fields[name] for entry in entries}) == len(entries)
    assert [entry for log_event in events for entry in build_entries(log_event)] == entries


def test_trace_is_copied_to_the_entry() -> None:
    traced = msgspec.structs.replace(event("session.spawn"), trace="00-ab-cd-01")
    assert build_entries(traced)[0].fields["trace"] == "00-ab-cd-01"


# -- signature


def test_signature_covers_the_stream_and_all_other_fields_in_order() -> None:
    fields = {"b": "2", "a": "1", "_sig": "ignored", "B": "3"}
    signed_text = b"caracal.sessions.revoke\nB=3\na=1\nb=2\n"
    assert sign(KEY, REVOCATIONS, fields) == hmac.new(KEY, signed_text, hashlib.sha256).hexdigest()


def test_signature_differs_per_stream_and_per_key() -> None:
    fields = {"a": "1"}
    assert len({sign(KEY, stream, fields) for stream in STREAMS}) == len(STREAMS)
    assert sign(KEY, AGENTS, fields) != sign(KEY + b"x", AGENTS, fields)


@given(st.text(), st.text())
def test_caller_text_cannot_forge_another_field_in_the_signed_text(reason: str, sid: str) -> None:
    for fields in entries_of("session.terminate", reason=reason, session_sid=sid).values():
        lines = "".join(f"{name}={fields[name]}\n" for name in sorted(fields))
        parsed = dict(line.split("=", 1) for line in lines.removesuffix("\n").split("\n"))
        assert parsed == fields


def test_reason_with_a_line_break_is_encoded_as_json() -> None:
    assert entries_of("session.suspend", reason="a\nsession_id=b")[AGENTS]["reason"] == '"a\\nsession_id=b"'
    assert entries_of("session.suspend", reason='a "quote"')[AGENTS]["reason"] == 'a "quote"'
