"""How the work plane is drawn: bars, branches, pictures. Pure, so no server is asked."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from quarterdeck.cli import progress_bars, task_tree, time_args, top_view
from quarterdeck.cli.output import TextStyler, clip, width
from quarterdeck.cli.session_tree import ASCII_GLYPHS
from quarterdeck.cli.task_add import TaskLine, batches
from quarterdeck.cli.task_logs import format_line
from quarterdeck.cli.top_view import EventRates, sparkline
from quarterdeck.client.api import Document

NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z
PLAINLY = TextStyler(is_enabled=False)
EVIL = "evil\x1b[2J"


def task(name: str, status: str = "PENDING", **more: object) -> Document:
    return {"id": name, "title": f"the {name}", "taskType": "build", "status": status, **more}


# -- bars ----------------------------------------------------------------------------------------------------------


@given(st.floats(-1, 2), st.integers(3, 60))
def test_a_bar_is_as_wide_as_it_was_told_to_be_and_full_only_at_the_end(share: float, columns: int) -> None:
    drawn = progress_bars.bar(share, columns)
    assert len(drawn) == columns
    assert (" " not in drawn[1:-1]) == (round(max(0.0, min(1.0, share)) * (columns - 2)) == columns - 2)


def test_few_tasks_have_a_line_each_and_many_share_one() -> None:
    tasks = [
        task("a", "COMPLETED", progressPercent=40),
        task("b", "RUNNING", progressPercent=50, currentStep="testing"),
        task("c", "FAILED", progressPercent=0, isFinal=True),
        task("d", "FAILED", progressPercent=0, isFinal=False),
    ]
    first, second, *_ = progress_bars.render_lines(tasks, 10, 100)
    assert "100%  completed  the a" in first
    assert second.startswith("[==========>           ]  50%  running    the b · testing")
    [whole] = progress_bars.render_lines(tasks, 3, 100)
    assert whole.endswith("2/4 ended: 1 completed, 2 failed, 1 running")


def test_no_line_is_wider_than_the_terminal_nor_moves_its_cursor() -> None:
    tasks = [task("a", "RUNNING", title=EVIL * 9, currentStep=EVIL * 9, progressPercent=5)]
    for columns in (20, 40, 80):
        [line] = progress_bars.render_lines(tasks, 5, columns)
        assert width(line) <= columns
        assert "\x1b" not in line


@given(st.text(), st.integers(0, 20))
def test_what_is_clipped_fits_and_says_that_something_is_missing(text: str, columns: int) -> None:
    kept = clip(text, columns)
    assert width(kept) <= max(columns, 0) or kept == text
    assert kept == text or kept.endswith("…") or columns == 0


# -- branches ------------------------------------------------------------------------------------------------------


def test_a_task_is_drawn_with_both_sides_and_what_two_ways_lead_to_once() -> None:
    told: Document = {
        "items": [
            task("ship", dependsOn=["test", "docs"]),
            task("test", "RUNNING", progressPercent=40, dependsOn=["build"]),
            task("docs", "PENDING", dependsOn=["build"]),
            task("build", "COMPLETED", dependsOn=["far-away"]),
            task("announce", dependsOn=["ship"]),
        ]
    }
    assert task_tree.draw(told, "ship", PLAINLY, ASCII_GLYPHS).splitlines() == [
        "ship            PENDING      the ship",
        "|- depends on",
        "|  |- test      RUNNING 40%  the test",
        "|  |  `- build  COMPLETED    the build",
        "|  `- docs      PENDING      the docs",
        "|     `- build  COMPLETED    the build  (also above)",
        "`- blocks",
        "   `- announce  PENDING      the announce",
    ]
    assert task_tree.draw({"items": [task("alone")]}, "alone", PLAINLY) == "alone  PENDING  the alone"


def test_a_long_chain_and_a_cycle_are_drawn_to_their_end() -> None:
    chain = [task(f"t{at}", dependsOn=[f"t{at + 1}"] if at < 1_200 else []) for at in range(1_201)]
    assert len(task_tree.draw({"items": chain}, "t0", PLAINLY).splitlines()) == 1_202
    cycle = [task("a", dependsOn=["b"]), task("b", dependsOn=["a"])]
    assert task_tree.draw({"items": cycle}, "a", PLAINLY).count("(also above)") == 2


# -- the log -------------------------------------------------------------------------------------------------------


def test_a_line_of_the_log_tells_the_move_and_below_it_where_something_failed() -> None:
    line: Document = {
        "createdAt": "2026-01-02T03:04:05.000Z",
        "level": "ERROR",
        "event": "error",
        "previousStatus": "RUNNING",
        "newStatus": "FAILED",
        "message": EVIL,
        "details": {"attempt": 2},
        "stackTrace": "Traceback\n  boom",
    }
    assert format_line(line, PLAINLY) == (
        "2026-01-02T03:04:05.000Z  ERROR     error             RUNNING → FAILED  evil\\x1b[2J  "
        '{"attempt": 2}\n    Traceback\n      boom'
    )


# -- the picture ---------------------------------------------------------------------------------------------------


def seen() -> top_view.Snapshot:
    stats: Document = {"pendingTasks": 120, "runningTasks": 8, "healthyAgents": 9, "staleAgents": 1}
    agents: list[Document] = [
        {"id": f"agent-{at}", "status": status, "heldTasks": 1, "maxConcurrentTasks": 2}
        for at, status in enumerate(["IDLE", "ERROR", "WORKING", "TERMINATED"])
    ]
    created = "2026-01-02T03:03:05.000Z"
    pending = [task(f"p{at}", createdAt=created, dependsOn=[]) for at in range(3)]
    running = [task(EVIL, "RUNNING", agentId="agent-2", progressPercent=40, startedAt=created)]
    return top_view.Snapshot(stats, agents, False, running, False, pending, False)


def test_a_picture_tells_who_watches_over_the_fleets_and_whom_nobody_has_heard_of() -> None:
    monitors: list[Document] = [
        {"fleet_id": 3, "pid": 9, "is_live": True, "last_tick_at": "2026-01-02T03:04:04.000Z"},
        {"fleet_id": 2, "pid": 8, "is_live": False, "last_tick_at": "2026-01-02T03:03:05.000Z"},
        {"fleet_id": 1, "pid": None, "is_live": False, "last_tick_at": None},
    ]
    watched = seen()._replace(monitors=monitors)
    lines = top_view.draw(top_view.Frame("z", watched, NOW, PLAINLY), top_view.Size(100, None))
    assert lines[2] == "monitors: fleet 3 running, fleet 2 stale (last tick 1m ago), fleet 1 stopped"


def test_a_picture_tells_counts_queues_agents_and_what_they_do() -> None:
    lines = top_view.draw(top_view.Frame("z", seen(), NOW, PLAINLY), top_view.Size(100, None))
    assert lines[0].startswith("qd top, zone z  ")
    assert lines[1] == "tasks: 120 pending, 8 running   agents: 9 alive, 1 lost"
    assert "build  3        1m      0" in lines
    ids = [line.split()[0] for line in lines if line.startswith("agent-")]
    assert ids == ["agent-2", "agent-1", "agent-0"], "who works first, and nobody who has ended"
    assert lines[-1].startswith("evil\\x1b[2J  agent-2  40%   1m")


def test_who_may_not_ask_the_coordinator_is_told_what_was_counted() -> None:
    frame = top_view.Frame("z", seen()._replace(stats=None, has_more_pending=True), NOW, PLAINLY)
    assert top_view.draw(frame, top_view.Size(100, None))[1] == "tasks: 3+ pending, 1 running   agents: 2 alive, 1 lost"


@pytest.mark.parametrize("rows", [3, 8, 24])
def test_a_picture_fits_the_screen_whatever_there_is_to_see(rows: int) -> None:
    agents: list[Document] = [{"id": f"agent-{at}", "status": "IDLE"} for at in range(100)]
    frame = top_view.Frame(
        "z", seen()._replace(agents=agents), NOW, PLAINLY, EventRates(NOW - 60), "the server does not answer"
    )
    lines = top_view.draw(frame, top_view.Size(60, rows))
    assert len(lines) <= rows
    assert all(width(line) <= 60 for line in lines)
    if rows == 24:
        assert lines[-1] == "! the server does not answer"
        assert any(line.startswith("… and ") for line in lines)


# -- rates ---------------------------------------------------------------------------------------------------------


def test_a_rate_is_of_whole_seconds_and_forgets_after_a_minute() -> None:
    rates = EventRates(NOW)
    for at in range(200):
        for _ in range(3):
            rates.record("task.completed", NOW + at)
    assert rates.per_second("task.completed", NOW + 200) == 3.0
    assert rates.per_second("task.completed", NOW + 205) == 1.5
    assert rates.per_second("task.failed", NOW + 200) == 0.0
    assert rates.history("task.completed", NOW + 400) == [0] * 60


def test_who_has_watched_for_two_seconds_does_not_divide_by_ten() -> None:
    rates = EventRates(NOW)
    for at in range(2):
        rates.record("task.created", NOW + at)
    assert rates.per_second("task.created", NOW + 2) == 1.0


def test_a_sparkline_is_as_high_as_the_highest_and_empty_where_nothing_happens() -> None:
    assert sparkline([0, 1, 4, 8], 10) == " ▂▅█"
    assert sparkline([0, 0], 10) == ""
    assert sparkline([1, 2, 3], 0) == ""
    assert len(sparkline([1] * 60, 12)) == 12


# -- moments, and what is sent at once -----------------------------------------------------------------------------


def test_a_moment_is_an_instant_or_so_long_from_now() -> None:
    assert time_args.parse_future_time("+10m", NOW) == "2026-01-02T03:14:05.000+00:00"
    assert time_args.parse_past_time("10m", NOW) == "2026-01-02T02:54:05.000+00:00"
    assert time_args.parse_future_time("2026-01-02T03:04:05+02:00", NOW).startswith("2026-01-0")
    assert time_args.parse_day("7d", NOW) == "2025-12-26"
    assert time_args.parse_day("2026-01-31", NOW) == "2026-01-31"
    # Without an offset it is meant as the clock on the wall shows it.
    local = time.strftime("%z", time.localtime(NOW))
    assert time_args.parse_future_time("2026-01-02T03:04:05", NOW).replace(":", "").endswith(local)


@pytest.mark.parametrize("text", ["soon", "+soon", "+999999999999999d", "2026-13-01", ""])
def test_what_is_no_moment_is_said_to_be_none(text: str) -> None:
    for kind in (time_args.FUTURE_TIME, time_args.PAST_TIME, time_args.DAY):
        with pytest.raises(ValueError):
            kind.parse(text)


def test_many_tasks_are_sent_a_thousand_at_once_and_large_ones_in_fewer() -> None:
    small = [TaskLine(at, {"title": "t"}) for at in range(2_500)]
    assert [len(batch) for batch in batches(small)] == [1_000, 1_000, 500]
    large = [TaskLine(at, {"description": "x" * (6 << 20)}) for at in range(5)]
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert [*batches([])] == []
