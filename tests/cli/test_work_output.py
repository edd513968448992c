"""Progress bars, task trees, log lines and `qd top` frames. Pure functions, no server."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from quarterdeck.cli import input as input_values, progress_bars, task_tree, top_view
from quarterdeck.cli.output import TextStyler, clip, width
from quarterdeck.cli.session_tree import ASCII_GLYPHS
from quarterdeck.cli.task_add import TaskLine, split_into_batches
from quarterdeck.cli.task_logs import format_line
from quarterdeck.cli.top_view import EventRates, sparkline
from quarterdeck.client.api import Document

NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z
PLAIN = TextStyler(is_enabled=False)
EVIL = "evil\x1b[2J"


def task(task_id: str, status: str = "PENDING", **fields: object) -> Document:
    return {"id": task_id, "title": f"the {task_id}", "taskType": "build", "status": status, **fields}


# -- bars ----------------------------------------------------------------------------------------------------------


@given(st.floats(-1, 2), st.integers(3, 60))
def test_bar_has_the_given_width_and_is_full_only_at_the_end(share: float, columns: int) -> None:
    text = progress_bars.bar(share, columns)
    assert len(text) == columns
    assert (" " not in text[1:-1]) == (round(max(0.0, min(1.0, share)) * (columns - 2)) == columns - 2)


def test_few_tasks_have_a_line_each_and_many_share_a_summary() -> None:
    tasks = [
        task("a", "COMPLETED", progressPercent=40),
        task("b", "RUNNING", progressPercent=50, currentStep="testing"),
        task("c", "FAILED", progressPercent=0, isFinal=True),
        task("d", "FAILED", progressPercent=0, isFinal=False),
    ]
    first, second, *_ = progress_bars.render_lines(tasks, 10, 100)
    assert "100%  completed  the a" in first
    assert second.startswith("[==========>           ]  50%  running    the b · testing")
    [summary] = progress_bars.render_lines(tasks, 3, 100)
    assert summary.endswith("2/4 ended: 1 completed, 2 failed, 1 running")


def test_progress_lines_fit_the_terminal_and_escape_control_characters() -> None:
    tasks = [task("a", "RUNNING", title=EVIL * 9, currentStep=EVIL * 9, progressPercent=5)]
    for columns in (20, 40, 80):
        [line] = progress_bars.render_lines(tasks, 5, columns)
        assert width(line) <= columns
        assert "\x1b" not in line


@given(st.text(), st.integers(0, 20))
def test_clipped_text_fits_and_ends_with_an_ellipsis(text: str, columns: int) -> None:
    clipped = clip(text, columns)
    assert width(clipped) <= max(columns, 0) or clipped == text
    assert clipped == text or clipped.endswith("…") or columns == 0


# -- trees ---------------------------------------------------------------------------------------------------------


def test_tree_draws_dependencies_and_dependents_each_task_once() -> None:
    document: Document = {
        "items": [
            task("ship", dependsOn=["test", "docs"]),
            task("test", "RUNNING", progressPercent=40, dependsOn=["build"]),
            task("docs", "PENDING", dependsOn=["build"]),
            task("build", "COMPLETED", dependsOn=["far-away"]),
            task("announce", dependsOn=["ship"]),
        ]
    }
    assert task_tree.draw(document, "ship", PLAIN, ASCII_GLYPHS).splitlines() == [
        "ship            PENDING      the ship",
        "|- depends on",
        "|  |- test      RUNNING 40%  the test",
        "|  |  `- build  COMPLETED    the build",
        "|  `- docs      PENDING      the docs",
        "|     `- build  COMPLETED    the build  (also above)",
        "`- blocks",
        "   `- announce  PENDING      the announce",
    ]
    assert task_tree.draw({"items": [task("alone")]}, "alone", PLAIN) == "alone  PENDING  the alone"


def test_tree_draws_long_chains_and_cycles() -> None:
    chain = [task(f"t{index}", dependsOn=[f"t{index + 1}"] if index < 1_200 else []) for index in range(1_201)]
    assert len(task_tree.draw({"items": chain}, "t0", PLAIN).splitlines()) == 1_202
    cycle = [task("a", dependsOn=["b"]), task("b", dependsOn=["a"])]
    assert task_tree.draw({"items": cycle}, "a", PLAIN).count("(also above)") == 2


# -- log lines -----------------------------------------------------------------------------------------------------


def test_log_line_contains_transition_details_and_stack_trace() -> None:
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
    assert format_line(line, PLAIN) == (
        "2026-01-02T03:04:05.000Z  ERROR     error             RUNNING → FAILED  evil\\x1b[2J  "
        '{"attempt": 2}\n    Traceback\n      boom'
    )


# -- qd top frames -------------------------------------------------------------------------------------------------


def snapshot() -> top_view.Snapshot:
    stats: Document = {"pendingTasks": 120, "runningTasks": 8, "healthyAgents": 9, "staleAgents": 1}
    agents: list[Document] = [
        {"id": f"agent-{index}", "status": status, "heldTasks": 1, "maxConcurrentTasks": 2}
        for index, status in enumerate(["IDLE", "ERROR", "WORKING", "TERMINATED"])
    ]
    created = "2026-01-02T03:03:05.000Z"
    pending = [task(f"p{index}", createdAt=created, dependsOn=[]) for index in range(3)]
    running = [task(EVIL, "RUNNING", agentId="agent-2", progressPercent=40, startedAt=created)]
    return top_view.Snapshot(
        stats, top_view.LoadedList(agents), top_view.LoadedList(running), top_view.LoadedList(pending)
    )


def test_frame_lists_running_stale_and_stopped_monitors() -> None:
    monitors: list[Document] = [
        {"fleet_id": 3, "pid": 9, "is_live": True, "last_tick_at": "2026-01-02T03:04:04.000Z"},
        {"fleet_id": 2, "pid": 8, "is_live": False, "last_tick_at": "2026-01-02T03:03:05.000Z"},
        {"fleet_id": 1, "pid": None, "is_live": False, "last_tick_at": None},
    ]
    view = snapshot()._replace(monitors=monitors)
    lines = top_view.draw(top_view.Frame("z", view, NOW, PLAIN), top_view.Size(100, None))
    assert lines[2] == "monitors: fleet 3 running, fleet 2 stale (last tick 1m ago), fleet 1 stopped"


def test_frame_shows_counts_queues_agents_and_running_tasks() -> None:
    lines = top_view.draw(top_view.Frame("z", snapshot(), NOW, PLAIN), top_view.Size(100, None))
    assert lines[0].startswith("qd top, zone z  ")
    assert lines[1] == "tasks: 120 pending, 8 running   agents: 9 healthy, 1 stale"
    assert "build  3        1m      0" in lines
    ids = [line.split()[0] for line in lines if line.startswith("agent-")]
    assert ids == ["agent-2", "agent-1", "agent-0"], "working agents first, no terminated agents"
    assert lines[-1].startswith("evil\\x1b[2J  agent-2  40%       1m")


def test_frame_without_coordinator_stats_counts_the_listed_rows() -> None:
    frame = top_view.Frame(
        "z", snapshot()._replace(stats=None, pending=snapshot().pending._replace(has_more=True)), NOW, PLAIN
    )
    assert (
        top_view.draw(frame, top_view.Size(100, None))[1] == "tasks: 3+ pending, 1 running   agents: 2 healthy, 1 stale"
    )


@pytest.mark.parametrize("rows", [3, 8, 24])
def test_frame_fits_the_screen(rows: int) -> None:
    agents: list[Document] = [{"id": f"agent-{index}", "status": "IDLE"} for index in range(100)]
    frame = top_view.Frame(
        "z",
        snapshot()._replace(agents=top_view.LoadedList(agents)),
        NOW,
        PLAIN,
        EventRates(NOW - 60),
        "the server does not answer",
    )
    lines = top_view.draw(frame, top_view.Size(60, rows))
    assert len(lines) <= rows
    assert all(width(line) <= 60 for line in lines)
    if rows == 24:
        assert lines[-1] == "! the server does not answer"
        assert any(line.startswith("… and ") for line in lines)


# -- rates ---------------------------------------------------------------------------------------------------------


def test_rate_counts_whole_seconds_and_keeps_one_minute() -> None:
    rates = EventRates(NOW)
    for second in range(200):
        for _ in range(3):
            rates.record("task.completed", NOW + second)
    assert rates.per_second("task.completed", NOW + 200) == 3.0
    assert rates.per_second("task.completed", NOW + 205) == 1.5
    assert rates.per_second("task.failed", NOW + 200) == 0.0
    assert rates.history("task.completed", NOW + 400) == [0] * 60


def test_rate_divides_by_the_observed_seconds() -> None:
    rates = EventRates(NOW)
    for second in range(2):
        rates.record("task.created", NOW + second)
    assert rates.per_second("task.created", NOW + 2) == 1.0


def test_sparkline_scales_to_its_maximum_and_is_empty_without_events() -> None:
    assert sparkline([0, 1, 4, 8], 10) == " ▂▅█"
    assert sparkline([0, 0], 10) == ""
    assert sparkline([1, 2, 3], 0) == ""
    assert len(sparkline([1] * 60, 12)) == 12


# -- times and batches --------------------------------------------------------------------------------------------


def test_time_arguments_are_instants_or_offsets_from_now() -> None:
    assert input_values.parse_future_time("+10m", NOW) == "2026-01-02T03:14:05.000+00:00"
    assert input_values.parse_past_time("10m", NOW) == "2026-01-02T02:54:05.000+00:00"
    assert input_values.parse_future_time("2026-01-02T03:04:05+02:00", NOW).startswith("2026-01-0")
    assert input_values.parse_day("7d", NOW) == "2025-12-26"
    assert input_values.parse_day("2026-01-31", NOW) == "2026-01-31"
    # Without an offset the time is local.
    local = time.strftime("%z", time.localtime(NOW))
    assert input_values.parse_future_time("2026-01-02T03:04:05", NOW).replace(":", "").endswith(local)


@pytest.mark.parametrize("text", ["soon", "+soon", "+999999999999999d", "2026-13-01", ""])
def test_invalid_time_argument_raises_value_error(text: str) -> None:
    for kind in (input_values.FUTURE_TIME, input_values.PAST_TIME, input_values.DAY):
        with pytest.raises(ValueError):
            kind.parse(text)


def test_batches_are_limited_by_count_and_size() -> None:
    small = [TaskLine(number, {"title": "t"}) for number in range(2_500)]
    assert [len(batch) for batch in split_into_batches(small)] == [1_000, 1_000, 500]
    large = [TaskLine(number, {"description": "x" * (6 << 20)}) for number in range(5)]
    assert [len(batch) for batch in split_into_batches(large)] == [2, 2, 1]
    assert [*split_into_batches([])] == []
