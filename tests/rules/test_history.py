"""The history checker: a valid history passes, and each planted violation of an invariant is found and is the only
finding."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.maintenance.history_checker.invariants import INVARIANTS
from quarterdeck.maintenance.history_checker.model import Outcome, Violation
from quarterdeck.maintenance.history_checker.reader import read_histories
from tests.support.call_violations import refused_key_stored
from tests.support.history_builder import (
    APP,
    ZONE,
    HistoryBuilder,
    PlantViolation,
    build_valid_history,
    parametrize_violations,
    require_only_violation_of,
    violations,
)
from tests.support.history_violations import VIOLATIONS
from tests.support.source import ROOT
from tests.support.task_violations import TASK_VIOLATIONS

replace = msgspec.structs.replace


def test_valid_history_has_no_violation() -> None:
    assert [violation.text() for violation in violations(build_valid_history())] == []


def test_cascade_over_several_trees_frees_the_slots_and_keys_of_all_at_once() -> None:
    """A revocation ends several target sessions in one cascade. Its event names only the first."""
    history = build_valid_history()
    history.spawn("target", key="k9")
    history.begin_cascade("root-2", "twig", "target")
    for number, key in enumerate(("k9", None, None)):
        history.spawn(f"next-{number}", key=key)
    for ended in ("twig", "root-2", "target"):
        history.terminate_session(ended, "root-2")
    assert [violation.text() for violation in violations(history)] == []
    history.marked_sessions.clear()
    assert {violation.promise for violation in violations(history)} == {"limits", "one-key"}


def test_service_registered_again_after_a_lost_response_is_no_violation() -> None:
    """Both registrations are logged for one id, and only the second got its response."""
    history = build_valid_history()
    history.add_event("service.register", "late", None, "starting", application_id=APP)
    history.add_call("register", None, {"application_id": APP})
    history.end_session("unanswered")
    history.spawn("between")
    history.add_event("service.unregister", "late", application_id=APP)
    history.add_event("service.register", "late", None, "starting", application_id=APP)
    history.add_call("register", 201, {"application_id": APP}, {"id": "late"})
    assert [violation.text() for violation in violations(history)] == []


def test_expiry_within_the_sweep_delay_is_no_violation() -> None:
    """The slowest sweep runs once per minute, so only an expiry more than two minutes ago counts."""
    history = build_valid_history()
    history.invoke("slow")
    history.claim("slow", 1, "w1")
    expired_at = history.clock
    history.invocations["slow"] = replace(
        history.invocations["slow"], deadline_at=expired_at, lease_expires_at=expired_at
    )
    history.delegate("edge-9", "right", "twig")
    history.edges["edge-9"] = replace(history.edges["edge-9"], expires_at=expired_at)
    history.clock += 100_000
    assert [violation.text() for violation in violations(history)] == []


@parametrize_violations(VIOLATIONS)
def test_planted_violation_is_found_and_is_the_only_finding(invariant: str, plant: PlantViolation) -> None:
    history = build_valid_history()
    plant(history)
    for violation in require_only_violation_of(invariant, history):
        assert violation.subject in violation.text() or violation.pos is not None


def test_removing_any_event_is_found() -> None:
    """Even with renumbered positions. Exceptions: zone limits, which the snapshots contain, and repeated
    registrations of a service."""
    for index in range(1, len(build_valid_history().events) - 2):
        history = build_valid_history()
        removed = history.remove_event(index)
        assert violations(history), f"no violation without {removed.type} of {removed.subject}"


def test_removing_any_row_is_found() -> None:
    for table in ("sessions", "invocations", "edges"):
        for name in getattr(build_valid_history(), table):
            history = build_valid_history()
            del getattr(history, table)[name]
            assert violations(history), f"no violation without the row of {name} in {table}"


def test_every_invariant_has_planted_violations_and_is_documented() -> None:
    assert INVARIANTS.keys() == VIOLATIONS.keys() | TASK_VIOLATIONS.keys()
    page = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")
    assert [name for name in INVARIANTS if f"| `{name}` |" not in page] == []


def test_key_stored_for_a_refused_request_is_found() -> None:
    history = build_valid_history()
    refused_key_stored(history)
    # The session is stored under its own key too, which violates the other invariant.
    assert {violation.promise for violation in violations(history)} == {"refused", "one-key"}


# -- histories that are allowed


def test_call_with_unknown_outcome_may_have_taken_effect_or_not() -> None:
    history = build_valid_history()
    for took_effect in (True, False):
        key = f"either-{took_effect}"
        history.add_call("invoke", None, {"service_id": "svc", "idempotency_key": key})
        if took_effect:
            history.invoke(key)
            history.calls.pop()
    assert violations(history) == []


def test_completion_repeated_after_a_lost_response_is_no_violation() -> None:
    history = build_valid_history()
    request = {"id": "well", "attempt_token": "well-1-w1", "status": "succeeded"}
    history.add_call("complete", None, request, client="w1")
    history.add_call("complete", 200, request, {"id": "well", "status": "succeeded"}, client="w1")
    assert violations(history) == []


def test_claim_repeated_with_its_id_is_no_violation() -> None:
    history = build_valid_history()
    for i, call in enumerate([*history.calls]):
        if call.op == "claim":
            history.calls[i] = replace(call, request=replace(call.request, claim_id=f"c{i}"))
            history.calls.append(replace(history.calls[i], client="other-client", seq=1000 + i))
    assert violations(history) == []


def test_limits_lowered_below_current_use_are_no_violation() -> None:
    history = build_valid_history()
    history.add_event("zone.change", ZONE, name=ZONE, quotas={"max_sessions": 0, "max_children": 3})
    assert violations(history) == []


def test_missing_events_below_the_floor_are_no_violation() -> None:
    """Retention removed the first half of the log. Its subjects are known from their rows."""
    history = build_valid_history()
    history.floor = history.find_event("invocation.created", "silent")
    history.events = history.events[history.floor :]
    oldest = history.events[0].at
    history.calls = [call for call in history.calls if call.ended >= oldest]
    assert [violation.text() for violation in violations(history)] == []
    history.events.append(
        replace(history.events[-1], pos=history.events[-1].pos + 1, type="session.resume", subject="short")
    )
    assert {violation.promise for violation in violations(history)} == {"after-the-end"}


@pytest.mark.parametrize(
    ("event_type", "subject", "number"),
    [
        ("invocation.started", "well", 0),
        ("invocation.started", "silent", 1),
        ("invocation.started", "back", 1),
        ("session.terminate", "left", 0),
        ("session.terminate", "root", 0),
    ],
)
def test_log_may_begin_with_a_started_attempt_or_inside_a_cascade(event_type: str, subject: str, number: int) -> None:
    history = build_valid_history()
    history.floor = history.find_event(event_type, subject, number)
    history.events = history.events[history.floor :]
    oldest = history.events[0].at
    history.calls = [call for call in history.calls if call.ended >= oldest]
    assert [violation.text() for violation in violations(history)] == []


def test_log_may_begin_with_the_release_of_a_later_attempt() -> None:
    """The event has the number of the attempt before, and the next attempt gets the number of the released one."""
    history = build_valid_history()
    history.invoke("twice")
    history.complete(history.claim("twice", 1, "w1"), "w1", "retried", "pending")
    history.claim("twice", 2, "w1")
    history.floor = len(history.events)
    history.change_state("twice", "released", "pending", 1)
    history.complete(history.claim("twice", 2, "w2"), "w2")
    history.events = history.events[history.floor :]
    history.calls = [call for call in history.calls if call.ended >= history.events[0].at]
    assert [violation.text() for violation in violations(history)] == []


# -- outcomes


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [
        (200, None, Outcome.DONE),
        (204, None, Outcome.DONE),
        (429, "agent_limit_exceeded", Outcome.REFUSED),
        (503, "database_unavailable", Outcome.REFUSED),
        (503, "outcome_unknown", Outcome.UNKNOWN),
        (503, None, Outcome.UNKNOWN),
        (500, "internal_error", Outcome.UNKNOWN),
        (502, None, Outcome.UNKNOWN),
        (None, None, Outcome.UNKNOWN),
    ],
)
def test_outcome_follows_from_status_and_error_code(status: int | None, error: str | None, outcome: Outcome) -> None:
    call = HistoryBuilder().add_call("spawn", status, {}, {"error": error} if error else None)
    assert call.outcome is outcome


# -- files


def write_lines(file: Path, *lines: object, end: str = "\n") -> Path:
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return file


LINE = {
    "client": "a",
    "seq": 1,
    "started": 1.5,
    "ended": 2,
    "op": "spawn",
    "zone": "z",
    "asked": {"application_id": "app", "metadata": {"deep": [1]}},
    "status": 201,
    "answer": {"id": "s", "status": "active", "limits": {}, "error": None},
    "note": "another field",
}


def test_lines_are_read_with_their_locations_and_unknown_fields_dropped(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "h.jsonl", LINE, "", LINE | {"seq": 2, "status": None, "answer": None})
    first, second = read_histories([file]).calls
    assert (first.location, first.response.id, first.outcome) == ("h.jsonl:1", "s", Outcome.DONE)
    assert (second.location, second.outcome) == ("h.jsonl:3", Outcome.UNKNOWN)


def test_truncated_last_line_is_counted_and_no_error(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "h.jsonl", LINE, json.dumps(LINE | {"seq": 2})[:40], end="")
    history = read_histories([file])
    assert (len(history.calls), history.truncated_file_count) == (1, 1)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        json.dumps(LINE | {"status": "201"}),
        json.dumps(LINE | {"started": 3}),
        json.dumps({name: value for name, value in LINE.items() if name != "op"}),
        "[" * 100_000,
    ],
)
def test_invalid_line_is_refused_with_its_location(tmp_path: Path, line: str) -> None:
    file = write_lines(tmp_path / "h.jsonl", LINE, line, LINE | {"seq": 3})
    with pytest.raises(Invalid, match=r"h\.jsonl:2 is not a valid call"):
        read_histories([file])


def test_duplicate_call_is_refused(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "h.jsonl", LINE)
    with pytest.raises(Invalid, match=r"h\.jsonl:1 and h\.jsonl:1 both have seq 1 of a"):
        read_histories([file, file])


def test_missing_file_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_histories([tmp_path / "none"])


def test_violation_text_is_one_line_with_control_characters_escaped() -> None:
    text = Violation("stale", "z", "s", "the client \x1b[2J\n", 3, "h.jsonl:1").text()
    assert text == r"stale at 3: zone z: the client \x1b[2J\n (h.jsonl:1)"
