"""The history checker on tasks: a valid history passes, and each planted violation of an invariant is found and is the
only finding."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.domain.tasks.rules.states import TASK_STATES
from quarterdeck.maintenance.history_checker.model import Outcome
from quarterdeck.maintenance.history_checker.nouns import TASK
from quarterdeck.maintenance.history_checker.reader import read_histories
from tests.support.history_builder import parametrize_violations, require_only_violation_of, violations
from tests.support.task_history_builder import PlantTaskViolation, build_valid_task_history
from tests.support.task_violations import TASK_VIOLATIONS, set_claimed_checkpoint

replace = msgspec.structs.replace


def test_valid_task_history_has_no_violation() -> None:
    assert [violation.text() for violation in violations(build_valid_task_history())] == []


@parametrize_violations(TASK_VIOLATIONS)
def test_planted_task_violation_is_found_and_is_the_only_finding(invariant: str, plant: PlantTaskViolation) -> None:
    history = build_valid_task_history()
    plant(history)
    require_only_violation_of(invariant, history)


def test_removing_any_task_event_is_found() -> None:
    """Even with renumbered positions. No invariant covers the registration of agents."""
    for index, event in enumerate(build_valid_task_history().events):
        if event.type.startswith("task."):
            history = build_valid_task_history()
            removed = history.remove_event(index)
            assert violations(history), f"no violation without {removed.type} of {removed.subject}"


def test_duplicating_any_task_event_is_found() -> None:
    for index, event in enumerate(build_valid_task_history().events):
        if event.type.startswith("task.") and event.type != "task.unblocked":
            history = build_valid_task_history()
            history.insert_event(index + 1, event)
            assert violations(history), f"no violation with a second {event.type} of {event.subject}"


def test_removing_any_task_row_is_found() -> None:
    for name in build_valid_task_history().tasks:
        history = build_valid_task_history()
        del history.tasks[name]
        assert violations(history), f"no violation without the row of {name}"


def test_checker_and_task_rules_have_the_same_transitions() -> None:
    """Both define them independently."""
    task_transitions = {
        (source, target) for table in TASK_STATES.transitions.values() for source, target in table.items()
    }
    checker_transitions = {
        (before, after) for pairs in TASK.transitions.values() for before, after in pairs if before != after
    }
    # A new task starts as PENDING, or as FAILED if a dependency has failed.
    assert checker_transitions - task_transitions == {(None, "PENDING"), (None, "FAILED")}
    assert {pair for pair in task_transitions - checker_transitions if pair[0] != pair[1]} == set()


def test_checkpoint_with_unknown_outcome_may_be_stored_or_not() -> None:
    for content in (b'{"at":2}', b'{"at":3}', b'{ "at" : 3 }'):
        history = build_valid_task_history()
        set_claimed_checkpoint(history, content)
        assert violations(history) == []


def test_missing_task_events_below_the_floor_are_no_violation() -> None:
    history = build_valid_task_history()
    history.floor = history.find_event("task.aborted", "long")
    history.events = history.events[history.floor :]
    oldest = history.events[0].at
    history.calls = [call for call in history.calls if call.ended >= oldest]
    assert [violation.text() for violation in violations(history)] == []


# -- lines

LINE = {
    "client": "a",
    "seq": 1,
    "started": 1.5,
    "ended": 2,
    "op": "task.progress",
    "zone": "z",
    "asked": {"id": "t", "attemptToken": "x", "checkpointData": {"at": 1}},
    "status": None,
    "before": True,
}


def write_lines(file: Path, *lines: object) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_line_written_after_a_call_replaces_the_line_before_it(tmp_path: Path) -> None:
    after = {**LINE, "before": False, "status": 409, "answer": {"error": "stale_attempt"}}
    [call] = read_histories([write_lines(tmp_path / "h.jsonl", LINE, after)]).calls
    assert (call.outcome, call.location) == (Outcome.REFUSED, "h.jsonl:2")
    [call] = read_histories([write_lines(tmp_path / "h.jsonl", LINE)]).calls
    assert call.outcome is Outcome.UNKNOWN
    assert call.request.has_checkpoint


@pytest.mark.parametrize(
    "lines",
    [
        (LINE, LINE),
        ({**LINE, "before": False}, LINE),
        ({**LINE, "status": 200},),
        ({**LINE, "asked": {"attemptToken": 7}},),
    ],
)
def test_inconsistent_lines_are_refused(tmp_path: Path, lines: tuple[dict[str, object], ...]) -> None:
    with pytest.raises(Invalid):
        read_histories([write_lines(tmp_path / "h.jsonl", *lines)])
