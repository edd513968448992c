"""The log of a task: transitions as entries, permission to append lines, and the merge of both in pages."""

from __future__ import annotations

import re

import msgspec
import pytest

from quarterdeck.core.errors import Problem, TooLarge
from quarterdeck.domain.task_logs import rules
from quarterdeck.domain.task_logs.model import LogEntry, LogItem, LogPosition
from quarterdeck.domain.task_logs.rules import EVENT_RENDERING, LogPart, PageRange, Transition
from quarterdeck.domain.tasks.model.log_lines import Level, NewLogLine
from quarterdeck.domain.tasks.model.rows import State
from tests.support.builders import caller
from tests.support.source import SRC
from tests.support.task_rules import AGENT_ID, task_row


def transition(kind: str, **data: object) -> Transition:
    text = msgspec.json.encode({"taskType": "development", "agentId": AGENT_ID, "attempt": 1, **data}).decode()
    return Transition(1, "e1", kind, "tester", "RUNNING", "FAILED", text, 1)


def entry(at: int, *, pos: int | None = None, number: int | None = None) -> LogEntry:
    return LogEntry(
        pos=pos, number=number, id=f"{pos or ''}-{number or ''}", agent_id=None, level=Level.INFO, event="log",
        message=None, details="{}", previous_status=None, new_status=None, session_key=None, stack_trace=None,
        created_at=at,
    )  # fmt: skip


# -- transitions


def test_every_task_event_type_has_a_rendering() -> None:
    sources = (SRC / "domain/tasks").rglob("*.py")
    kinds = {kind for path in sources for kind in re.findall(r'"(task\.[a-z]+)"', path.read_text())}
    kinds -= {"task.create", "task.progress", "task.claim"}  # operations of idempotency keys, not events
    assert kinds == set(EVENT_RENDERING)


@pytest.mark.parametrize(
    ("kind", "data", "level", "event"),
    [
        ("task.created", {}, "INFO", "state_transition"),
        ("task.progressed", {"progressPercent": 5}, "INFO", "progress_update"),
        ("task.warned", {}, "WARN", "warning"),
        ("task.failed", {"reason": "failed"}, "ERROR", "state_transition"),
        ("task.failed", {"exhausted": True, "final": True}, "CRITICAL", "state_transition"),
        ("task.aborted", {"reason": "stale"}, "ERROR", "state_transition"),
    ],
)
def test_transition_has_the_level_and_event_of_its_type(
    kind: str, data: dict[str, object], level: str, event: str
) -> None:
    log_entry = rules.entry_from_transition(transition(kind, **data))
    assert (log_entry.level, log_entry.event, log_entry.agent_id) == (level, event, AGENT_ID)
    assert (log_entry.previous_status, log_entry.new_status) == ("RUNNING", "FAILED")
    assert log_entry.message


@pytest.mark.parametrize("kind", sorted(EVENT_RENDERING))
def test_every_transition_is_rendered_as_a_sentence(kind: str) -> None:
    message = rules.entry_from_transition(
        transition(kind, progressPercent=3, currentStep="step", reason="reason")
    ).message
    assert message
    assert message.endswith(".")
    assert "None" not in message


def test_level_and_event_filter_maps_to_event_types() -> None:
    assert rules.transition_filter(None, None).types is None
    assert rules.transition_filter(Level.WARN, None).types == ("task.warned",)
    assert rules.transition_filter(Level.CRITICAL, None) == rules.TransitionFilter(("task.failed",), True)
    assert rules.transition_filter(Level.ERROR, None) == rules.TransitionFilter(("task.failed", "task.aborted"), False)
    assert rules.transition_filter(None, "progress_update").types == ("task.progressed",)
    assert rules.transition_filter(Level.DEBUG, None).types == ()
    assert rules.transition_filter(Level.WARN, "state_transition").types == ()


# -- new lines


def problem_code(outcome: Problem | None) -> str | None:
    return None if outcome is None else outcome.code


def test_only_the_holder_of_the_current_attempt_can_append_lines() -> None:
    running = task_row(State.RUNNING)
    holder = msgspec.structs.replace(caller(), agent_id=AGENT_ID)
    other = msgspec.structs.replace(caller(), agent_id="b")
    assert problem_code(rules.append_problem(holder, running, "t", "k")) is None
    assert problem_code(rules.append_problem(caller(), running, "t", "k")) is None
    assert problem_code(rules.append_problem(caller(), running, "t", None)) == "attempt_token_required"
    assert problem_code(rules.append_problem(caller(), running, "t", "old")) == "stale_attempt"
    assert problem_code(rules.append_problem(other, running, "t", "k")) == "stale_attempt"
    assert problem_code(rules.append_problem(caller(), task_row(State.COMPLETED), "t", "k")) == "stale_attempt"
    assert problem_code(rules.append_problem(caller(), None, "t", "k")) == "task_not_found"


def test_new_line_contains_no_secrets() -> None:
    item = LogItem(
        message="token=canary",
        stack_trace="password=canary",
        details={"password": "canary", "deep": [{"$secret": "canary"}], "n": 1},
    )
    line = rules.new_line(item, "l")
    assert "canary" not in f"{line.details} {line.message} {line.stack_trace}"
    assert msgspec.json.decode(line.details) == {"password": "***", "deep": ["***"], "n": 1}


def test_known_secrets_are_redacted_in_all_texts_and_details_stay_json() -> None:
    line = NewLogLine("l", Level.INFO, "log", "it is 1234", '{"n":1234,"1234":["x1234"]}', "at 1234")
    redacted = rules.redact_line(line, lambda text: text.replace("1234", "***"))
    assert (redacted.message, redacted.stack_trace) == ("it is ***", "at ***")
    assert msgspec.json.decode(redacted.details) == {"n": 1234, "***": ["x***"]}


def test_oversized_details_are_refused() -> None:
    with pytest.raises(TooLarge):
        rules.new_line(LogItem(details={"a": "x" * 70_000}), "l")


# -- pages of transitions and lines


def pages(transitions: list[LogEntry], lines: list[LogEntry], limit: int, *, oldest_first: bool) -> list[list[str]]:
    """All pages. Each starts at the position of the previous one, as in the database."""
    position = LogPosition(0, 0) if oldest_first else LogPosition(10**9, 10**9)
    end = LogPosition(10**6, 10**6) if oldest_first else LogPosition(0, 0)
    result: list[list[str]] = []
    for _ in range(100):

        def part(entries: list[LogEntry], reached: int, name: str) -> LogPart:
            ordered = sorted(entries, key=lambda e: getattr(e, name), reverse=not oldest_first)
            remaining = [
                e for e in ordered if (getattr(e, name) > reached) == oldest_first and getattr(e, name) != reached
            ]
            return LogPart(remaining[: limit + 1], len(remaining) > limit)

        page_range = PageRange(position, end, limit, oldest_first)
        page = rules.merge_parts(
            part(transitions, position.pos, "pos"), part(lines, position.number, "number"), page_range
        )
        result.append([e.id for e in page.entries])
        if page.is_last:
            return result
        position = page.position
    raise AssertionError("no last page")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_contain_every_transition_and_line_once_and_in_order(limit: int) -> None:
    transitions = [entry(at, pos=n + 1) for n, at in enumerate([1, 1, 4, 9, 9, 12])]
    lines = [entry(at, number=n + 1) for n, at in enumerate([2, 3, 4, 4, 9, 20, 21])]
    ascending = [entry_id for page in pages(transitions, lines, limit, oldest_first=True) for entry_id in page]
    descending = [entry_id for page in pages(transitions, lines, limit, oldest_first=False) for entry_id in page]
    assert ascending == ["1-", "2-", "-1", "-2", "3-", "-3", "-4", "4-", "5-", "-5", "6-", "-6", "-7"]
    assert descending == ascending[::-1]


def test_clock_set_back_loses_no_entry() -> None:
    transitions = [entry(at, pos=number + 1) for number, at in enumerate([5, 1, 7])]
    lines = [entry(at, number=number + 1) for number, at in enumerate([6, 2, 3])]
    for oldest_first in (True, False):
        for limit in (1, 2, 10):
            entry_ids = [
                entry_id for page in pages(transitions, lines, limit, oldest_first=oldest_first) for entry_id in page
            ]
            assert sorted(entry_ids) == ["-1", "-2", "-3", "1-", "2-", "3-"]
            line_ids = [entry_id for entry_id in entry_ids if entry_id.startswith("-")]
            assert line_ids == (["-1", "-2", "-3"] if oldest_first else ["-3", "-2", "-1"])


def test_page_ends_where_the_truncated_part_ends() -> None:
    """A page full of long lines must not contain transitions later than the lines that did not fit."""
    page_range = PageRange(LogPosition(0, 0), LogPosition(99, 99), 10, True)
    page = rules.merge_parts(LogPart([entry(5, pos=1)], False), LogPart([entry(1, number=1)], True), page_range)
    assert [e.id for e in page.entries] == ["-1"]
    assert (page.position, page.is_last) == (LogPosition(0, 1), False)
