"""Histories of tasks against log and rows: a true one passes, and of each promise every breach that is planted is
found, named, and the only thing that is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.domain.tasks.rules.states import TASK_STATES
from quarterdeck.maintenance.history_checker.model import Outcome, Violation
from quarterdeck.maintenance.history_checker.reader import read_histories
from quarterdeck.maintenance.history_checker.run import check_invariants
from quarterdeck.maintenance.history_checker.task_replay import TRANSITIONS
from tests.support.history_builder import ZONE
from tests.support.task_history_builder import PlantTaskViolation, TaskHistoryBuilder, build_valid_task_history
from tests.support.task_violations import TASK_VIOLATIONS, set_claimed_checkpoint

replace = msgspec.structs.replace


def found(written: TaskHistoryBuilder) -> list[Violation]:
    return list(check_invariants(written.build()))


def test_a_true_history_of_tasks_breaks_no_promise() -> None:
    assert [finding.text() for finding in found(build_valid_task_history())] == []


@pytest.mark.parametrize(
    ("promise", "plant"),
    [
        pytest.param(promise, plant, id=f"{promise}-{plant.__name__}")
        for promise, plants in TASK_VIOLATIONS.items()
        for plant in plants
    ],
)
def test_what_is_planted_among_tasks_is_found_and_nothing_else_is_said(promise: str, plant: PlantTaskViolation) -> None:
    written = build_valid_task_history()
    plant(written)
    findings = found(written)
    assert {finding.promise for finding in findings} == {promise}, [finding.text() for finding in findings]
    for finding in findings:
        assert finding.zone_id == ZONE
        assert finding.subject
        assert finding.pos is not None or finding.call is not None or promise in ("agreement", "rest", "refused")


def test_no_event_of_a_task_can_be_taken_out_of_the_log_unseen() -> None:
    """Even where positions are given out anew. That an agent came to be is nobody's promise."""
    for index, event in enumerate(build_valid_task_history().events):
        if event.type.startswith("task."):
            written = build_valid_task_history()
            gone = written.remove_event(index)
            assert found(written), f"without {gone.type} of {gone.subject} nothing was found"


def test_no_event_of_a_task_can_be_told_twice_unseen() -> None:
    for index, event in enumerate(build_valid_task_history().events):
        if event.type.startswith("task.") and event.type != "task.unblocked":
            written = build_valid_task_history()
            written.insert_event(index + 1, event)
            assert found(written), f"{event.type} of {event.subject} was told twice, and nothing was found"


def test_no_row_of_a_task_can_be_removed_unseen() -> None:
    for name in build_valid_task_history().tasks:
        written = build_valid_task_history()
        del written.tasks[name]
        assert found(written), f"without the row of {name} nothing was found"


def test_the_judge_and_the_room_know_the_same_arrows() -> None:
    """Each wrote them down for itself."""
    room = {(state, to) for moves in TASK_STATES.transitions.values() for state, to in moves.items()}
    judge = {(before, after) for arrows in TRANSITIONS.values() for before, after in arrows if before != after}
    # Made with what it depends on in ruins, it has failed from the beginning; and what waits for its next attempt is
    # canceled where it stands.
    assert judge - room == {(None, "PENDING"), (None, "FAILED")}
    assert {arrow for arrow in room - judge if arrow[0] != arrow[1]} == set()


def test_a_checkpoint_whose_fate_nobody_knows_may_have_been_kept_or_not() -> None:
    for content in (b'{"at":2}', b'{"at":3}', b'{ "at" : 3 }'):
        written = build_valid_task_history()
        set_claimed_checkpoint(written, content)
        assert found(written) == []


def test_below_the_floor_of_the_log_no_task_is_missed() -> None:
    written = build_valid_task_history()
    written.floor = written.find_event("task.aborted", "long")
    written.events = written.events[written.floor :]
    oldest = written.events[0].at
    written.calls = [call for call in written.calls if call.ended >= oldest]
    assert [finding.text() for finding in found(written)] == []


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


def written_to(file: Path, *lines: object) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_what_was_written_before_a_call_gives_way_to_what_was_written_after(tmp_path: Path) -> None:
    after = {**LINE, "before": False, "status": 409, "answer": {"error": "stale_attempt"}}
    [call] = read_histories([written_to(tmp_path / "h.jsonl", LINE, after)]).calls
    assert (call.outcome, call.location) == (Outcome.REFUSED, "h.jsonl:2")
    [call] = read_histories([written_to(tmp_path / "h.jsonl", LINE)]).calls
    assert call.outcome is Outcome.UNKNOWN
    assert call.task_data is not None
    assert call.task_data.request.has_checkpoint


@pytest.mark.parametrize(
    "lines",
    [
        (LINE, LINE),
        ({**LINE, "before": False}, LINE),
        ({**LINE, "status": 200},),
        ({**LINE, "asked": {"attemptToken": 7}},),
    ],
)
def test_what_cannot_have_been_written_so_is_refused(tmp_path: Path, lines: tuple[dict[str, object], ...]) -> None:
    with pytest.raises(Invalid):
        read_histories([written_to(tmp_path / "h.jsonl", *lines)])
