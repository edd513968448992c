"""Histories against log and rows: a true one passes, and of each promise every breach that is planted is found, named,
and the only thing that is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.maintenance.history_checker.invariants import INVARIANTS
from quarterdeck.maintenance.history_checker.model import Outcome, Violation
from quarterdeck.maintenance.history_checker.reader import read_histories
from quarterdeck.maintenance.history_checker.run import check_invariants
from tests.support.call_violations import refused_key_stored
from tests.support.history_builder import ZONE, HistoryBuilder, PlantViolation, build_valid_history
from tests.support.history_violations import VIOLATIONS
from tests.support.source import ROOT
from tests.support.task_violations import TASK_VIOLATIONS

replace = msgspec.structs.replace


def found(written: HistoryBuilder) -> list[Violation]:
    return list(check_invariants(written.build()))


def test_a_true_history_breaks_no_promise() -> None:
    assert [finding.text() for finding in found(build_valid_history())] == []


def test_what_ran_out_a_moment_ago_has_not_been_forgotten() -> None:
    """A sweep comes within the minute; until then nobody is blamed."""
    written = build_valid_history()
    written.invoke("slow")
    written.claim("slow", 1, "w1")
    over = written.clock
    written.invocations["slow"] = replace(written.invocations["slow"], deadline_at=over, lease_expires_at=over)
    written.delegate("edge-9", "right", "twig")
    written.edges["edge-9"] = replace(written.edges["edge-9"], expires_at=over)
    written.clock += 100_000
    assert [finding.text() for finding in found(written)] == []


@pytest.mark.parametrize(
    ("promise", "plant"),
    [
        pytest.param(promise, plant, id=f"{promise}-{plant.__name__}")
        for promise, plants in VIOLATIONS.items()
        for plant in plants
    ],
)
def test_what_is_planted_is_found_and_nothing_else_is_said(promise: str, plant: PlantViolation) -> None:
    written = build_valid_history()
    plant(written)
    findings = found(written)
    assert {finding.promise for finding in findings} == {promise}, [finding.text() for finding in findings]
    for finding in findings:
        assert finding.zone_id == ZONE
        assert finding.subject
        assert finding.subject in finding.text() or finding.pos is not None
        assert finding.pos is not None or finding.call is not None or promise in ("agreement", "rest", "refused")


def test_no_event_can_be_taken_out_of_the_log_unseen() -> None:
    """Even where positions are given out anew. What the zone set for itself is not missed, since the snapshots have it;
    nor is how often a service came and went."""
    for index in range(1, len(build_valid_history().events) - 2):
        written = build_valid_history()
        gone = written.remove_event(index)
        assert found(written), f"without {gone.type} of {gone.subject} nothing was found"


def test_no_row_can_be_removed_unseen() -> None:
    for table in ("sessions", "invocations", "edges"):
        for name in getattr(build_valid_history(), table):
            written = build_valid_history()
            del getattr(written, table)[name]
            assert found(written), f"without the row of {name} in {table} nothing was found"


def test_every_promise_has_breaches_planted_and_is_explained() -> None:
    assert INVARIANTS.keys() == VIOLATIONS.keys() | TASK_VIOLATIONS.keys()
    page = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")
    assert [name for name in INVARIANTS if f"| `{name}` |" not in page] == []


def test_a_key_that_only_met_refusals_and_stands_for_something_is_found() -> None:
    written = build_valid_history()
    refused_key_stored(written)
    # The session is known under its own key, too: that is the other promise.
    assert {finding.promise for finding in found(written)} == {"refused", "one-key"}


# -- what is allowed either way


def test_an_unknown_outcome_may_have_been_done_or_not() -> None:
    written = build_valid_history()
    for made in (True, False):
        key = f"either-{made}"
        written.add_call("invoke", None, {"service_id": "svc", "idempotency_key": key})
        if made:
            written.invoke(key)
            written.calls.pop()
    assert found(written) == []


def test_a_completion_asked_again_after_a_lost_answer_is_no_second_holder() -> None:
    written = build_valid_history()
    asked = {"id": "well", "attempt_token": "well-1-w1", "status": "succeeded"}
    written.add_call("complete", None, asked, client="w1")
    written.add_call("complete", 200, asked, {"id": "well", "status": "succeeded"}, client="w1")
    assert found(written) == []


def test_a_claim_repeated_by_its_id_hands_out_the_same_again() -> None:
    written = build_valid_history()
    for i, call in enumerate([*written.calls]):
        if call.op == "claim":
            written.calls[i] = replace(call, request=replace(call.request, claim_id=f"c{i}"))
            written.calls.append(replace(written.calls[i], client="somebody", seq=1000 + i))
    assert found(written) == []


def test_limits_lowered_under_what_runs_are_no_breach() -> None:
    written = build_valid_history()
    written.add_event("zone.change", ZONE, name=ZONE, quotas={"max_sessions": 0, "max_children": 3})
    assert found(written) == []


def test_below_the_floor_of_the_log_nobody_is_missed() -> None:
    """Retention has removed the first half: what began there is known by its rows."""
    written = build_valid_history()
    written.floor = written.find_event("invocation.created", "silent")
    written.events = written.events[written.floor :]
    oldest = written.events[0].at
    written.calls = [call for call in written.calls if call.ended >= oldest]
    assert [finding.text() for finding in found(written)] == []
    written.events.append(
        replace(written.events[-1], pos=written.events[-1].pos + 1, type="session.resume", subject="short")
    )
    assert {finding.promise for finding in found(written)} == {"after-the-end"}


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
def test_what_an_answer_says_of_the_outcome(status: int | None, error: str | None, outcome: Outcome) -> None:
    call = HistoryBuilder().add_call("spawn", status, {}, {"error": error} if error else None)
    assert call.outcome is outcome


# -- files


def written_to(file: Path, *lines: object, end: str = "\n") -> Path:
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
    "note": "whatever else a client wants to keep",
}


def test_lines_are_read_with_their_places_and_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    file = written_to(tmp_path / "h.jsonl", LINE, "", LINE | {"seq": 2, "status": None, "answer": None})
    first, second = read_histories([file]).calls
    assert (first.location, first.response.id, first.outcome) == ("h.jsonl:1", "s", Outcome.DONE)
    assert (second.location, second.outcome) == ("h.jsonl:3", Outcome.UNKNOWN)


def test_a_last_line_that_was_cut_is_counted_and_no_error(tmp_path: Path) -> None:
    file = written_to(tmp_path / "h.jsonl", LINE, json.dumps(LINE | {"seq": 2})[:40], end="")
    history = read_histories([file])
    assert (len(history.calls), history.truncated_files) == (1, 1)


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
def test_a_line_that_is_none_stops_with_its_place(tmp_path: Path, line: str) -> None:
    file = written_to(tmp_path / "h.jsonl", LINE, line, LINE | {"seq": 3})
    with pytest.raises(Invalid, match=r"h\.jsonl:2 is not a call"):
        read_histories([file])


def test_one_call_told_twice_is_refused(tmp_path: Path) -> None:
    file = written_to(tmp_path / "h.jsonl", LINE)
    with pytest.raises(Invalid, match=r"h\.jsonl:1 and h\.jsonl:1 are both call 1 of a"):
        read_histories([file, file])


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_histories([tmp_path / "none"])


def test_a_finding_is_one_line_whatever_names_are_in_it() -> None:
    text = Violation("stale", "z", "s", "the client \x1b[2J\n", 3, "h.jsonl:1").text()
    assert text == r"stale at 3: zone z: the client \x1b[2J\n (h.jsonl:1)"
