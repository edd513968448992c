"""Draws one frame of `qd top`: counts, rates, queues, agents, running tasks. Pure: all input is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.cli.agent import format_status
from quarterdeck.cli.list_output import ago
from quarterdeck.cli.output import TextStyler, cell, clip, format_duration, pad, parse_timestamp, width
from quarterdeck.client.api import Document

RATE_LABELS = (("task.created", "created"), ("task.started", "started"), ("task.completed", "completed"))
FAILURE_EVENTS = ("task.failed", "task.aborted")
_GAP = "   "


class LoadedList(NamedTuple):
    """The first pages of a list."""

    items: Sequence[Document]
    has_more: bool = False

    def format_count(self, *statuses: str) -> str:
        """Format how many items were loaded, or how many of them have one of these statuses."""
        count = sum(1 for item in self.items if not statuses or item.get("status") in statuses)
        return f"{count}{'+' if self.has_more else ''}"


class Snapshot(NamedTuple):
    """The data that one load returned."""

    stats: Document | None
    """Statistics of the coordinator. None if the caller may not read them."""
    agents: LoadedList
    running: LoadedList
    pending: LoadedList
    monitors: Sequence[Document] = ()
    """Monitors of the fleets, newest fleet first."""


class Size(NamedTuple):
    columns: int
    rows: int | None
    """None if the number of rows is not limited."""


class Frame(NamedTuple):
    """The input of one drawing."""

    zone: str
    snapshot: Snapshot
    now: float
    styler: TextStyler
    rates: EventRates | None = None
    """None with --once: rates need a few seconds of events."""
    warning: str | None = None


def draw(frame: Frame, size: Size) -> list[str]:
    # Without a row limit the output is not a screen, so the clock is not right-aligned.
    header = [_title_line(frame, 0 if size.rows is None else size.columns), _counts_line(frame)]
    if frame.rates is not None:
        header.append(_rates_line(frame.rates, frame.now, size.columns))
    if frame.snapshot.monitors:
        header.append(_monitors_line(frame.snapshot.monitors, frame.now))
    sections = [_queue_lines(frame), _agent_lines(frame), _running_lines(frame)]
    footer = [] if frame.warning is None else [f"! {cell(frame.warning)}"]
    remaining = None if size.rows is None else max(size.rows - len(header) - len(footer), 0)
    lines = [*header, *_fit_sections([section for section in sections if len(section) > 1], remaining), *footer]
    visible = lines if size.rows is None else lines[: size.rows]
    return [_style_heading(frame.styler, clip(line, size.columns)) for line in visible]


def _style_heading(styler: TextStyler, line: str) -> str:
    """Make the line bold if it is a heading. The first column of a heading is in capitals."""
    first_column = line.split("  ", 1)[0]
    return styler.bold(line) if first_column.isupper() and len(first_column) > 1 else line


def _title_line(frame: Frame, columns: int) -> str:
    from time import localtime, strftime

    title, clock = f"qd top, zone {frame.zone}", strftime("%H:%M:%S", localtime(frame.now))
    return f"{title}{' ' * max(columns - width(title) - len(clock), 2)}{clock}"


def _counts_line(frame: Frame) -> str:
    snapshot = frame.snapshot
    stats = snapshot.stats
    if stats is None:
        counts = [
            snapshot.pending.format_count(),
            snapshot.running.format_count(),
            snapshot.agents.format_count("IDLE", "WORKING"),
            snapshot.agents.format_count("ERROR"),
        ]
    else:
        field_names = ("pendingTasks", "runningTasks", "healthyAgents", "staleAgents")
        counts = [cell(stats.get(name)) for name in field_names]
    pending, running, healthy, stale = counts
    return f"tasks: {pending} pending, {running} running{_GAP}agents: {healthy} healthy, {stale} stale"


def _rates_line(rates: EventRates, now: float, columns: int) -> str:
    parts = [f"{rates.per_second(event_type, now):.1f} {label}/s" for event_type, label in RATE_LABELS]
    failed_per_second = sum(rates.per_second(event_type, now) for event_type in FAILURE_EVENTS)
    parts.append(f"{failed_per_second:.1f} failed/s")
    line = _GAP.join(parts)
    spark = sparkline(rates.history("task.completed", now), columns - len(line) - len(_GAP))
    return f"{line}{_GAP}{spark}".rstrip()


def _monitors_line(monitors: Sequence[Document], now: float) -> str:
    """Format a line such as `monitors: fleet 2 running, fleet 1 stale (last tick 3m ago)`."""
    parts = []
    for monitor in monitors:
        state = "stopped" if monitor.get("pid") is None else "running" if monitor.get("is_live") is True else "stale"
        last_tick = ago(monitor.get("last_tick_at"), now) if state == "stale" else None
        suffix = "" if last_tick is None else f" (last tick {last_tick})"
        parts.append(f"fleet {cell(monitor.get('fleet_id'))} {state}{suffix}")
    return f"monitors: {', '.join(parts)}"


def _fit_sections(sections: Sequence[list[str]], rows: int | None) -> list[str]:
    """Give each section an equal share of the remaining rows. Unused rows go to the following sections."""
    lines: list[str] = []
    for index, section in enumerate(sections):
        if rows is None:
            lines += ["", *section]
            continue
        share = (rows - len(lines)) // (len(sections) - index)
        # Skip a section that would show only its heading and "and N more".
        if share < min(4, len(section) + 1):
            continue
        body = section[: share - 1]
        if len(body) < len(section):
            body[-1] = f"… and {len(section) - len(body) + 1} more"
        lines += ["", *body]
    return lines


def _queue_lines(frame: Frame) -> list[str]:
    queues: dict[str, list[Document]] = {}
    for task in frame.snapshot.pending.items:
        queues.setdefault(cell(task.get("taskType")), []).append(task)
    rows = []
    for task_type, tasks in sorted(queues.items(), key=lambda queue: -len(queue[1])):
        oldest_created_at = min(parse_timestamp(task.get("createdAt")) or frame.now for task in tasks)
        with_dependencies_count = sum(1 for task in tasks if task.get("dependsOn"))
        suffix = "+" if frame.snapshot.pending.has_more else ""
        age = format_duration(frame.now - oldest_created_at)
        rows.append((task_type, f"{len(tasks)}{suffix}", age, str(with_dependencies_count)))
    return _align_columns(("QUEUE", "PENDING", "OLDEST", "WITH DEPENDENCIES"), rows)


def _agent_lines(frame: Frame) -> list[str]:
    # Working agents first, then stale ones. Idle agents come last, because they are the least interesting.
    order = {"WORKING": 0, "ERROR": 1, "DEGRADED": 2, "IDLE": 3, "TERMINATED": 4}
    agents = [agent for agent in frame.snapshot.agents.items if agent.get("status") != "TERMINATED"]
    agents.sort(key=lambda agent: (order.get(str(agent.get("status")), 9), str(agent.get("id"))))
    rows = [
        (
            cell(agent.get("id")),
            format_status(agent),
            f"{cell(agent.get('heldTasks'))}/{cell(agent.get('maxConcurrentTasks'))}",
            ago(agent.get("lastSeenAt"), frame.now) or "-",
            cell(agent.get("capabilities")),
        )
        for agent in agents
    ]
    return _align_columns(("AGENT", "STATUS", "TASKS", "LAST SEEN", "CAPABILITIES"), rows)


def _running_lines(frame: Frame) -> list[str]:
    rows = [
        (
            cell(task.get("id")),
            cell(task.get("agentId")),
            f"{cell(task.get('progressPercent'))}%",
            format_duration(frame.now - (parse_timestamp(task.get("startedAt")) or frame.now)),
            " · ".join(cell(task.get(name)) for name in ("title", "currentStep") if task.get(name)),
        )
        for task in frame.snapshot.running.items
    ]
    return _align_columns(("RUNNING", "AGENT", "PROGRESS", "TIME", "TITLE"), rows)


def _align_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(width, column)) for column in zip(headers, *rows, strict=True)]
    return [
        "  ".join(pad(text, column_width) for text, column_width in zip(row, widths, strict=True)).rstrip()
        for row in (headers, *rows)
    ]


HISTORY_SECONDS = 60
"""How many seconds of counts are stored."""
RATE_WINDOW_SECONDS = 10
"""A rate is the average of this many seconds. A shorter window would make it jump; a longer one would make it lag."""
_LEVELS = "▁▂▃▄▅▆▇█"


class EventRates:
    def __init__(self, now: float) -> None:
        self._started_at = int(now)
        self._counts: dict[str, dict[int, int]] = {}

    def record(self, event_type: str, now: float) -> None:
        second = int(now)
        counts = self._counts.setdefault(event_type, {})
        if second not in counts and len(counts) > HISTORY_SECONDS:
            for old_second in [recorded for recorded in counts if recorded < second - HISTORY_SECONDS]:
                del counts[old_second]
        counts[second] = counts.get(second, 0) + 1

    def per_second(self, event_type: str, now: float) -> float:
        """Return the rate over full seconds only: the current second is incomplete and would lower it."""
        current_second = int(now)
        # After 3 seconds of counting, average over 3 seconds, not 10.
        seconds = max(min(RATE_WINDOW_SECONDS, current_second - self._started_at), 1)
        return sum(self.history(event_type, now)[-seconds:]) / seconds

    def history(self, event_type: str, now: float) -> list[int]:
        counts = self._counts.get(event_type, {})
        return [counts.get(second, 0) for second in range(int(now) - HISTORY_SECONDS, int(now))]


def sparkline(counts: list[int], columns: int) -> str:
    """Draw one bar per second for the last `columns` seconds, scaled to the highest count among them."""
    visible = counts[-columns:] if columns > 0 else []
    maximum = max(visible, default=0)
    if maximum == 0:
        return ""
    return "".join(
        " " if count == 0 else _LEVELS[min(count * len(_LEVELS) // maximum, len(_LEVELS) - 1)] for count in visible
    )
