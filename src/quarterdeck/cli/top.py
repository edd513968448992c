"""`qd top`: agents, queues and rates, updated live.

Two threads collect the data. One follows the zone's events, counts them by type and signals a change. The other loads
agents and running tasks at most every 2 s after a change, and at least every 10 s. Queues and monitors take more
requests and are loaded only every 10 s. The screen is drawn once a second, because rates and ages change with time, and
at once when the terminal is resized.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quarterdeck.cli.command_table import Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.monitor import is_live
from quarterdeck.cli.top_view import EventRates, Frame, LoadedList, Size, Snapshot, draw
from quarterdeck.client.api import ApiClient, Document, Query, next_cursor, page_items
from quarterdeck.client.event_stream import EventStream
from quarterdeck.core.errors import Fault, Forbidden

if TYPE_CHECKING:
    from quarterdeck.cli.terminal import Screen

_TASK_EVENTS = ("created", "assigned", "started", "paused", "resumed", "completed", "failed", "aborted")
_AGENT_EVENTS = ("registered", "changed", "degraded", "recovered", "stale", "revived", "terminated")
EVENT_TYPES = ",".join([*(f"task.{kind}" for kind in _TASK_EVENTS), *(f"agent.{kind}" for kind in _AGENT_EVENTS)])
_MIN_REFRESH_SECONDS, _MAX_REFRESH_SECONDS, _DRAW_SECONDS = 2.0, 10.0, 1.0
"""The shortest and the longest time between two loads, and the time between two drawings."""
_QUIT_KEYS = frozenset("qQ\x04")
_PAGE_SIZE, _MAX_PAGES = 100, 5
"""Items per page, and pages to load per list. Pages are small, because tasks are returned with their input."""
_MAX_FLEETS = 8


GROUP = Group("")


@GROUP.command(
    "top",
    "Show agents, queues and rates live.",
    Option("--once", "Print once and exit. This is the default if stdout is not a terminal."),
    description="Press q to quit. Rates are averages over the last 10 seconds. --once prints no rates.",
)
def top(context: Context) -> None:
    if context.flag("once") or context.as_json or not _is_interactive(context):
        _print_once(context)
    else:
        _LiveView(context).run()


def _is_interactive(context: Context) -> bool:
    streams = (sys.stdin, sys.stdout)
    return context.environ.get("TERM") != "dumb" and all(stream is not None and stream.isatty() for stream in streams)


def _print_once(context: Context) -> None:
    snapshot = load_snapshot(context, context.server())
    document: Document = {
        "zone": context.zone,
        "stats": snapshot.stats,
        "agents": [*snapshot.agents.items],
        "running": [*snapshot.running.items],
        "pending": [*snapshot.pending.items],
        "monitors": [*snapshot.monitors],
        "truncated": any(loaded.has_more for loaded in (snapshot.agents, snapshot.running, snapshot.pending)),
    }
    frame = Frame(context.zone, snapshot, time.time(), context.styler)
    context.show(document, lambda _: "\n".join(draw(frame, Size(_output_width(), None))))


def _output_width() -> int:
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 200


def load_snapshot(context: Context, server: ApiClient, previous: Snapshot | None = None) -> Snapshot:
    """Load a snapshot. With `previous`, reuse its queues (many pages) and monitors (one request each)."""
    tasks_path = context.api_path("agent-tasks")
    agents = _load_pages(server, context.api_path("agents"), {})
    running = _load_pages(server, tasks_path, {"status": "RUNNING"})
    pending = previous.pending if previous else _load_pages(server, tasks_path, {"status": "PENDING"})
    monitors = previous.monitors if previous else _load_monitors(context, server)
    return Snapshot(_load_stats(context, server), agents, running, pending, monitors)


def _load_monitors(context: Context, server: ApiClient) -> Sequence[Document]:
    """Load the monitors of the newest fleets, as many as fit on one line."""
    page = server.get(context.api_path("fleets"), {"limit": _MAX_FLEETS})
    fleet_ids = [fleet.get("fleet_id") for fleet in page_items(page, "fleets")]
    monitors = [server.get(context.api_path("fleets", str(fleet_id), "monitor")) for fleet_id in fleet_ids]
    return [{**monitor, "is_live": is_live(monitor)} for monitor in monitors]


def _load_pages(server: ApiClient, path: str, query: Query) -> LoadedList:
    items: list[Document] = []
    page_query = {**query, "limit": _PAGE_SIZE}
    for _ in range(_MAX_PAGES):
        page = server.get(path, page_query)
        items += page_items(page)
        cursor = next_cursor(page)
        if not isinstance(cursor, str):
            return LoadedList(items)
        page_query["cursor"] = cursor
    return LoadedList(items, has_more=True)


def _load_stats(context: Context, server: ApiClient) -> Document | None:
    try:
        stats = server.get(context.api_path("coordinator", "status"), {"workspace": context.zone}).get("stats")
    except Forbidden:
        return None  # only ADMIN and OWNER may read the stats; without them, `draw` counts the loaded lists
    return stats if isinstance(stats, dict) else None


class _LiveView:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._rates = EventRates(time.time())
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._warning: str | None = None
        self._error: Exception | None = None
        """The error that ended a thread. `run` raises it: a retry would not help."""
        # Load before the screen is opened, so that an error is reported as in any other command.
        self._snapshot = load_snapshot(context, context.server())

    def run(self) -> None:
        from quarterdeck.cli.terminal import Screen

        with Screen() as screen:
            for work in (self._count_events, self._refresh):
                threading.Thread(target=self._run_thread, args=(work, screen), daemon=True).start()
            keys = ""
            while self._error is None and not _QUIT_KEYS & {*keys}:
                screen.draw(draw(self._frame(), Size(*screen.size())))
                keys = screen.wait(self._seconds_to_next_draw())
            self._stopped.set()
        if self._error is not None:
            raise self._error

    def _frame(self) -> Frame:
        styler = self._context.styler
        return Frame(self._context.zone, self._snapshot, time.time(), styler, self._rates, self._warning)

    def _seconds_to_next_draw(self) -> float:
        # Rates count full seconds: drawing at the end of each second keeps them smooth.
        return _DRAW_SECONDS - time.time() % _DRAW_SECONDS

    def _run_thread(self, work: Callable[[], None], screen: Screen) -> None:
        try:
            work()
        except Exception as error:
            # Any error must end the command: otherwise the screen would keep showing old data.
            self._error = error
            screen.wake()

    def _count_events(self) -> None:
        stream = EventStream(
            self._context.find_running_server,
            self._context.zone_path("events"),
            {"types": EVENT_TYPES},
            self._set_warning,
            None,
        )
        for message in stream.messages(self._context.server()):
            self._rates.record(message.event, time.time())
            self._changed.set()

    def _set_warning(self, text: str) -> None:
        self._warning = text
        self._changed.set()

    def _refresh(self) -> None:
        server: ApiClient | None = None
        queues_loaded_at = time.monotonic()
        while not self._stopped.wait(_MIN_REFRESH_SECONDS):
            self._changed.wait(_MAX_REFRESH_SECONDS - _MIN_REFRESH_SECONDS)
            self._changed.clear()
            try:
                server = server or self._context.find_running_server()
                if server is None:
                    self._warning = "The server is not responding."
                    continue
                is_queue_refresh_due = time.monotonic() - queues_loaded_at >= _MAX_REFRESH_SECONDS
                self._snapshot = load_snapshot(self._context, server, None if is_queue_refresh_due else self._snapshot)
                self._warning = None
                queues_loaded_at = time.monotonic() if is_queue_refresh_due else queues_loaded_at
            except Fault as fault:
                # This may be temporary: keep the last snapshot and show the warning.
                self._warning, server = fault.detail, None
