"""The log of a task: how transitions read, who may say something, and how two orders become one."""

from __future__ import annotations

import re

import msgspec
import pytest

from quarterdeck.core.errors import Problem, TooLarge
from quarterdeck.domain.tasks.model.log_types import Level, LogEntry, LogItem, LogPosition, NewLogLine
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.rules import log_rendering
from quarterdeck.domain.tasks.rules.log_rendering import EVENT_RENDERING, LogPart, PageRange, Transition
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


# -- transitions as lines


def test_every_transition_that_a_task_makes_reads_as_a_line() -> None:
    sources = [path for path in (SRC / "domain/tasks").rglob("*.py") if path.name != "telling.py"]
    told = {kind for path in sources for kind in re.findall(r'"(task\.[a-z]+)"', path.read_text())}
    told -= {"task.create", "task.progress", "task.claim"}  # what keys are kept under
    assert told == set(EVENT_RENDERING)


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
def test_how_grave_a_transition_is(kind: str, data: dict[str, object], level: str, event: str) -> None:
    read = log_rendering.entry_from_transition(transition(kind, **data))
    assert (read.level, read.event, read.agent_id) == (level, event, AGENT_ID)
    assert (read.previous_status, read.new_status) == ("RUNNING", "FAILED")
    assert read.message


@pytest.mark.parametrize("kind", sorted(EVENT_RENDERING))
def test_every_transition_is_told_in_a_sentence(kind: str) -> None:
    said = log_rendering.entry_from_transition(
        transition(kind, progressPercent=3, currentStep="look", reason="why")
    ).message
    assert said
    assert said.endswith(".")
    assert "None" not in said


def test_what_is_asked_for_by_level_and_event_is_found_by_the_types_of_events() -> None:
    assert log_rendering.transition_filter(None, None).types is None
    assert log_rendering.transition_filter(Level.WARN, None).types == ("task.warned",)
    assert log_rendering.transition_filter(Level.CRITICAL, None) == log_rendering.TransitionFilter(
        ("task.failed",), True
    )
    assert log_rendering.transition_filter(Level.ERROR, None) == log_rendering.TransitionFilter(
        ("task.failed", "task.aborted"), False
    )
    assert log_rendering.transition_filter(None, "progress_update").types == ("task.progressed",)
    assert log_rendering.transition_filter(Level.DEBUG, None).types == ()
    assert log_rendering.transition_filter(Level.WARN, "state_transition").types == ()


# -- saying something


def refused(outcome: Problem | None) -> str | None:
    return None if outcome is None else outcome.code


def test_only_the_holder_of_the_present_attempt_says_something() -> None:
    running = task_row(State.RUNNING)
    own = msgspec.structs.replace(caller(), agent_id=AGENT_ID)
    other = msgspec.structs.replace(caller(), agent_id="b")
    assert refused(log_rendering.append_problem(own, running, "t", "k")) is None
    assert refused(log_rendering.append_problem(caller(), running, "t", "k")) is None
    assert refused(log_rendering.append_problem(caller(), running, "t", None)) == "attempt_token_required"
    assert refused(log_rendering.append_problem(caller(), running, "t", "old")) == "stale_attempt"
    assert refused(log_rendering.append_problem(other, running, "t", "k")) == "stale_attempt"
    assert refused(log_rendering.append_problem(caller(), task_row(State.COMPLETED), "t", "k")) == "stale_attempt"
    assert refused(log_rendering.append_problem(caller(), None, "t", "k")) == "task_not_found"


def test_secrets_are_gone_before_a_line_is_anywhere() -> None:
    item = LogItem(
        message="token=canary",
        stack_trace="password=canary",
        details={"password": "canary", "deep": [{"$secret": "canary"}], "n": 1},
    )
    said = log_rendering.new_line(item, "l")
    assert "canary" not in f"{said.details} {said.message} {said.stack_trace}"
    assert msgspec.json.decode(said.details) == {"password": "***", "deep": ["***"], "n": 1}


def test_what_is_known_to_be_secret_is_struck_out_of_every_text_and_leaves_json_behind() -> None:
    line = NewLogLine("l", Level.INFO, "log", "it is 1234", '{"n":1234,"1234":["x1234"]}', "at 1234")
    clean = log_rendering.redact_line(line, lambda text: text.replace("1234", "***"))
    assert (clean.message, clean.stack_trace) == ("it is ***", "at ***")
    assert msgspec.json.decode(clean.details) == {"n": 1234, "***": ["x***"]}


def test_details_have_a_bound() -> None:
    with pytest.raises(TooLarge):
        log_rendering.new_line(LogItem(details={"a": "x" * 70_000}), "l")


# -- two halves


def pages(transitions: list[LogEntry], lines: list[LogEntry], limit: int, *, oldest_first: bool) -> list[list[str]]:
    """All pages, each read from where the one before has come to, as the database would give them."""
    place = LogPosition(0, 0) if oldest_first else LogPosition(10**9, 10**9)
    end = LogPosition(10**6, 10**6) if oldest_first else LogPosition(0, 0)
    found: list[list[str]] = []
    for _ in range(100):

        def half(entries: list[LogEntry], reached: int, name: str) -> LogPart:
            ordered = sorted(entries, key=lambda e: getattr(e, name), reverse=not oldest_first)
            left = [e for e in ordered if (getattr(e, name) > reached) == oldest_first and getattr(e, name) != reached]
            return LogPart(left[: limit + 1], len(left) > limit)

        span = PageRange(place, end, limit, oldest_first)
        page = log_rendering.merge_parts(half(transitions, place.pos, "pos"), half(lines, place.number, "number"), span)
        found.append([e.id for e in page.entries])
        if page.is_last:
            return found
        place = page.position
    raise AssertionError("it never ends")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_of_both_halves_hold_everything_once_and_in_order(limit: int) -> None:
    transitions = [entry(at, pos=n + 1) for n, at in enumerate([1, 1, 4, 9, 9, 12])]
    lines = [entry(at, number=n + 1) for n, at in enumerate([2, 3, 4, 4, 9, 20, 21])]
    forth = [name for page in pages(transitions, lines, limit, oldest_first=True) for name in page]
    back = [name for page in pages(transitions, lines, limit, oldest_first=False) for name in page]
    assert forth == ["1-", "2-", "-1", "-2", "3-", "-3", "-4", "4-", "5-", "-5", "6-", "-6", "-7"]
    assert back == forth[::-1]


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    transitions = [entry(at, pos=n + 1) for n, at in enumerate([5, 1, 7])]
    lines = [entry(at, number=n + 1) for n, at in enumerate([6, 2, 3])]
    for oldest_first in (True, False):
        for limit in (1, 2, 10):
            read = [n for page in pages(transitions, lines, limit, oldest_first=oldest_first) for n in page]
            assert sorted(read) == ["-1", "-2", "-3", "1-", "2-", "3-"]
            of_lines = [name for name in read if name.startswith("-")]
            assert of_lines == (["-1", "-2", "-3"] if oldest_first else ["-3", "-2", "-1"])


def test_where_a_half_was_cut_the_other_does_not_run_ahead() -> None:
    """A page that is full of long lines must not show what happened after those that did not fit."""
    span = PageRange(LogPosition(0, 0), LogPosition(99, 99), 10, True)
    page = log_rendering.merge_parts(LogPart([entry(5, pos=1)], False), LogPart([entry(1, number=1)], True), span)
    assert [e.id for e in page.entries] == ["-1"]
    assert (page.position, page.is_last) == (LogPosition(0, 1), False)
