"""One picture of the work plane: counts, rates, queues, agents and what they do. Pure: all of it is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.cli.agent import standing
from quarterdeck.cli.list_output import ago
from quarterdeck.cli.output import Paint, cell, clip, instant, pad, span, width
from quarterdeck.client.api import Document

RATES = (("task.created", "added"), ("task.started", "begun"), ("task.completed", "completed"))
FAILURES = ("task.failed", "task.aborted")
_GAP = "   "


class Seen(NamedTuple):
    """What was found when somebody last looked."""

    stats: Document | None
    """Those of the coordinator; None where the bearer may not ask it."""
    agents: Sequence[Document]
    more_agents: bool
    running: Sequence[Document]
    more_running: bool
    pending: Sequence[Document]
    more_pending: bool
    monitors: Sequence[Document] = ()
    """Of the fleets, the newest first."""


class Size(NamedTuple):
    columns: int
    rows: int | None
    """None: all of it, however long."""


class Frame(NamedTuple):
    """What is drawn, and how."""

    zone: str
    seen: Seen
    now: float
    paint: Paint
    rates: Rates | None = None
    """None: nobody has watched for long enough to know any."""
    trouble: str | None = None


def draw(frame: Frame, size: Size) -> list[str]:
    # What nobody watches has no right edge to put a clock at.
    top = [_head(frame, 0 if size.rows is None else size.columns), _counts(frame)]
    if frame.rates is not None:
        top.append(_rates(frame.rates, frame.now, size.columns))
    if frame.seen.monitors:
        top.append(_monitors(frame.seen.monitors, frame.now))
    sections = [_queues(frame), _agents(frame), _running(frame)]
    foot = [] if frame.trouble is None else [f"! {cell(frame.trouble)}"]
    left = None if size.rows is None else max(size.rows - len(top) - len(foot), 0)
    lines = [*top, *_fitted([one for one in sections if len(one) > 1], left), *foot]
    kept = lines if size.rows is None else lines[: size.rows]
    return [_painted(frame.paint, clip(line, size.columns)) for line in kept]


def _painted(paint: Paint, line: str) -> str:
    """Headings stand out: they are all in capitals, up to the first word that is not."""
    first = line.split("  ", 1)[0]
    return paint.bold(line) if first.isupper() and len(first) > 1 else line


def _head(frame: Frame, columns: int) -> str:
    from time import localtime, strftime

    what, clock = f"qd top, zone {frame.zone}", strftime("%H:%M:%S", localtime(frame.now))
    return f"{what}{' ' * max(columns - width(what) - len(clock), 2)}{clock}"


def _counts(frame: Frame) -> str:
    seen = frame.seen
    stats = seen.stats
    if stats is None:
        working = sum(1 for one in seen.agents if one.get("status") in ("IDLE", "WORKING"))
        lost = sum(1 for one in seen.agents if one.get("status") == "ERROR")
        told = [
            _many(len(seen.pending), seen.more_pending),
            _many(len(seen.running), seen.more_running),
            _many(working, seen.more_agents),
            _many(lost, seen.more_agents),
        ]
    else:
        named = ("pendingTasks", "runningTasks", "healthyAgents", "staleAgents")
        told = [cell(stats.get(name)) for name in named]
    pending, running, alive, stale = told
    return f"tasks: {pending} pending, {running} running{_GAP}agents: {alive} alive, {stale} lost"


def _many(count: int, is_more: bool) -> str:
    return f"{count}{'+' if is_more else ''}"


def _rates(rates: Rates, now: float, columns: int) -> str:
    told = [f"{rates.per_second(kind, now):.1f} {word}/s" for kind, word in RATES]
    failed = sum(rates.per_second(kind, now) for kind in FAILURES)
    told.append(f"{failed:.1f} failed/s")
    line = _GAP.join(told)
    spark = sparkline(rates.history("task.completed", now), columns - len(line) - len(_GAP))
    return f"{line}{_GAP}{spark}".rstrip()


def _monitors(monitors: Sequence[Document], now: float) -> str:
    """`monitors: fleet 2 running, fleet 1 stale (last tick 3m ago)`."""
    told = []
    for one in monitors:
        word = "stopped" if one.get("pid") is None else "running" if one.get("is_live") is True else "stale"
        last = ago(one.get("last_tick_at"), now) if word == "stale" else None
        told.append(f"fleet {cell(one.get('fleet_id'))} {word}{'' if last is None else f' (last tick {last})'}")
    return f"monitors: {', '.join(told)}"


def _fitted(sections: Sequence[list[str]], rows: int | None) -> list[str]:
    """Each gets an equal share of what is left; what it does not need goes to those after it."""
    lines: list[str] = []
    for at, section in enumerate(sections):
        if rows is None:
            lines += ["", *section]
            continue
        share = (rows - len(lines)) // (len(sections) - at)
        # A heading with nothing below it but how much is missing tells nobody anything.
        if share < min(4, len(section) + 1):
            continue
        body = section[: share - 1]
        if len(body) < len(section):
            body[-1] = f"… and {len(section) - len(body) + 1} more"
        lines += ["", *body]
    return lines


def _queues(frame: Frame) -> list[str]:
    queues: dict[str, list[Document]] = {}
    for task in frame.seen.pending:
        queues.setdefault(cell(task.get("taskType")), []).append(task)
    rows = []
    for kind, tasks in sorted(queues.items(), key=lambda one: -len(one[1])):
        oldest = min(instant(task.get("createdAt")) or frame.now for task in tasks)
        waiting = sum(1 for task in tasks if task.get("dependsOn"))
        more = "+" if frame.seen.more_pending else ""
        rows.append((kind, f"{len(tasks)}{more}", span(frame.now - oldest), str(waiting)))
    return _columns(("QUEUE", "PENDING", "OLDEST", "WITH DEPENDENCIES"), rows)


def _agents(frame: Frame) -> list[str]:
    # Those who work first, then those who are lost: whoever idles is of least interest.
    order = {"WORKING": 0, "ERROR": 1, "DEGRADED": 2, "IDLE": 3, "TERMINATED": 4}
    agents = [one for one in frame.seen.agents if one.get("status") != "TERMINATED"]
    agents.sort(key=lambda one: (order.get(str(one.get("status")), 9), str(one.get("id"))))
    rows = [
        (
            cell(one.get("id")),
            standing(one),
            f"{cell(one.get('heldTasks'))}/{cell(one.get('maxConcurrentTasks'))}",
            ago(one.get("lastSeenAt"), frame.now) or "-",
            cell(one.get("capabilities")),
        )
        for one in agents
    ]
    return _columns(("AGENT", "STATUS", "TASKS", "HEARD OF", "CAPABILITIES"), rows)


def _running(frame: Frame) -> list[str]:
    rows = [
        (
            cell(one.get("id")),
            cell(one.get("agentId")),
            f"{cell(one.get('progressPercent'))}%",
            span(frame.now - (instant(one.get("startedAt")) or frame.now)),
            " · ".join(cell(one.get(name)) for name in ("title", "currentStep") if one.get(name)),
        )
        for one in frame.seen.running
    ]
    return _columns(("RUNNING", "AGENT", "DONE", "FOR", "WHAT"), rows)


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(width, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(pad(text, wide) for text, wide in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]


KEPT = 60
"""Seconds that are remembered."""
OVER = 10
"""Seconds that a rate is the mean of: less would jump, more would lag."""
_LEVELS = "▁▂▃▄▅▆▇█"


class Rates:
    def __init__(self, now: float) -> None:
        self._began = int(now)
        self._counts: dict[str, dict[int, int]] = {}

    def note(self, kind: str, now: float) -> None:
        second = int(now)
        counts = self._counts.setdefault(kind, {})
        if second not in counts and len(counts) > KEPT:
            for old in [at for at in counts if at < second - KEPT]:
                del counts[old]
        counts[second] = counts.get(second, 0) + 1

    def per_second(self, kind: str, now: float) -> float:
        """Of whole seconds only: the one that has just begun would pull it down."""
        last = int(now)
        # Who has watched for three seconds knows nothing of the seven before.
        seconds = max(min(OVER, last - self._began), 1)
        return sum(self.history(kind, now)[-seconds:]) / seconds

    def history(self, kind: str, now: float) -> list[int]:
        counts = self._counts.get(kind, {})
        return [counts.get(second, 0) for second in range(int(now) - KEPT, int(now))]


def sparkline(counts: list[int], columns: int) -> str:
    """The last seconds, as many as there are columns, each as high as it is among them."""
    shown = counts[-columns:] if columns > 0 else []
    most = max(shown, default=0)
    if most == 0:
        return ""
    return "".join(" " if one == 0 else _LEVELS[min(one * len(_LEVELS) // most, len(_LEVELS) - 1)] for one in shown)
