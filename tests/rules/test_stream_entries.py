"""Which entries an event becomes: streams, fields and signature as the contract has them."""

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
    return Event(pos, f"e{pos}", "z", kind, subject, "someone", None, None, text, None, 1_767_323_045_678)


def told(kind: str, **data: object) -> dict[str, dict[str, str]]:
    return {entry.stream: dict(entry.fields) for entry in build_entries(event(kind, **data))}


COMMON = {"zone_id": "z", "pos": "7", "at": "2026-01-02T03:04:05.678Z", "actor": "someone"}


@pytest.mark.parametrize("verb", ["spawn", "suspend", "resume"])
def test_what_becomes_of_a_session_is_told_to_those_who_watch_agents(verb: str) -> None:
    said = {"application_id": "app", "parent_id": None, "root_id": "s1", "session_sid": "sid", "depth": 0}
    assert told(f"session.{verb}", **said) == {
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


def test_the_end_of_a_session_is_told_with_its_reason_and_revokes_its_sid() -> None:
    entries = told("session.terminate", reason="requested", cause="s0", session_sid="sid", root_id="s0")
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


def test_a_sid_that_is_still_in_use_is_not_revoked() -> None:
    said = {"reason": "x", "session_sid": "sid"}
    assert told("session.terminate", sid_in_use=True, **said).keys() == {AGENTS}
    assert told("session.terminate", sid_in_use=False, **said).keys() == {AGENTS, REVOCATIONS}
    assert "sid_in_use" not in told("session.terminate", sid_in_use=False, **said)[AGENTS]


@pytest.mark.parametrize("state", ["created", "started", "succeeded", "failed", "timed_out", "canceled", "dead"])
def test_invocations_are_told_by_their_events_names(state: str) -> None:
    said = {"service_id": "v", "attempt": 2, "error": {"code": "e"}, "available_at": None}
    [entry] = told(f"invocation.{state}", **said).items()
    stream, fields = entry
    assert stream == INVOCATIONS
    assert fields["event"] == f"invocation.{state}"
    assert fields["invocation_id"] == "s1"
    assert (fields["service_id"], fields["attempt"], fields["error"]) == ("v", "2", '{"code":"e"}')
    assert "available_at" not in fields


@pytest.mark.parametrize("verb", ["create", "revoke", "expire"])
def test_a_change_of_delegations_invalidates_edges_with_the_epoch_and_policies(verb: str) -> None:
    said = {"source_session_id": "a", "target_session_id": "b", "epoch": 12, "scopes": ["x", "y"]}
    entries = told(f"delegation.{verb}", **said)
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
def test_other_events_are_nobodys_business(kind: str) -> None:
    assert build_entries(event(kind)) == []


def test_each_occurrence_has_keys_of_its_own_that_do_not_change() -> None:
    ends = {"reason": "x", "session_sid": "sid"}
    kinds = ("session.suspend", "session.terminate", "delegation.revoke") * 2
    events = [event(kind, "same", pos, **ends) for pos, kind in enumerate(kinds, 1)]
    entries = [entry for one in events for entry in build_entries(one)]
    assert len(entries) == 10
    for name in ("outbox_id", "dedupe_key"):
        assert len({entry.fields[name] for entry in entries}) == len(entries)
    assert [entry for one in events for entry in build_entries(one)] == entries


def test_a_trace_is_passed_on() -> None:
    traced = msgspec.structs.replace(event("session.spawn"), trace="00-ab-cd-01")
    assert build_entries(traced)[0].fields["trace"] == "00-ab-cd-01"


# -- the signature


def test_the_signature_is_over_the_stream_and_every_other_field_in_order() -> None:
    fields = {"b": "2", "a": "1", "_sig": "whatever", "B": "3"}
    said = b"caracal.sessions.revoke\nB=3\na=1\nb=2\n"
    assert sign(KEY, REVOCATIONS, fields) == hmac.new(KEY, said, hashlib.sha256).hexdigest()


def test_an_entry_of_one_stream_is_not_good_for_another_nor_with_another_key() -> None:
    fields = {"a": "1"}
    assert len({sign(KEY, stream, fields) for stream in STREAMS}) == len(STREAMS)
    assert sign(KEY, AGENTS, fields) != sign(KEY + b"x", AGENTS, fields)


@given(st.text(), st.text())
def test_no_text_that_a_caller_chooses_makes_one_field_pass_for_two(reason: str, sid: str) -> None:
    for fields in told("session.terminate", reason=reason, session_sid=sid).values():
        lines = "".join(f"{name}={fields[name]}\n" for name in sorted(fields))
        read = dict(line.split("=", 1) for line in lines.removesuffix("\n").split("\n"))
        assert read == fields


def test_a_reason_with_a_line_break_is_told_as_json() -> None:
    assert told("session.suspend", reason="a\nsession_id=b")[AGENTS]["reason"] == '"a\\nsession_id=b"'
    assert told("session.suspend", reason='say "no"')[AGENTS]["reason"] == 'say "no"'
