"""The rooms of the work plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.domain.agents.heartbeat_port import Keep, Reported, Tells, Working
from quarterdeck.domain.tasks import detail_routes as task_records, operations as tasks, routes as task_routes
from quarterdeck.domain.tasks.detail_routes import RecordDesk
from quarterdeck.domain.tasks.model import commands as task_commands
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import budgets, log_long_poll, logs
from quarterdeck.domain.tasks.routes import TaskDesk
from quarterdeck.domain.tasks.sweeps import TaskRetention
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.engine.secrets import Safe
from quarterdeck.engine.settings import LogSettings
from quarterdeck.runtime import Keel, Room


@dataclass(frozen=True, slots=True)
class TaskWords:
    """What the room of tasks says and hears when an agent is heard of."""

    tells: Callable[[Working], Awaitable[Tells]]
    hears: Callable[[Reported], Awaitable[Keep]]


@dataclass(frozen=True, slots=True)
class Tasks:
    """The room of tasks, and what others share of it."""

    room: Room
    lane: Lane[task_commands.Command, task_commands.Outcome]
    words: TaskWords


def the_tasks(keel: Keel, safe: Safe) -> Tasks:
    told = keel.settings.section(TaskSettings)
    waiters, poll_seconds = tasks.waiters(), told.task_claim_poll_ms / 1000
    exchange = tasks.Exchange(tasks.windows_of(told), waiters, poll_seconds)
    lane: Lane[task_commands.Command, task_commands.Outcome] = keel.lanes.writing("task", exchange.run)
    show = keel.lanes.reading("task-show", tasks.show)
    desk = TaskDesk(keel.engine, lane.submit, show.submit, waiters, safe, told)
    waiters.unwanted = desk.release
    keel.metrics.gauge("quarterdeck_claims_waiting", "Claims that wait for work", "tasks", waiters.__len__)
    look = tasks.Look(keel.engine, waiters, poll_seconds)
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    room = Room(
        task_routes.routes(desk),
        [TaskRetention(keel.everywhere, lane.submit, told).sweep(cleaning_ms)],
        runs=[Lookout(keel.wakes, waiters, look, poll_seconds, "task-lookout")],
        on_drain=[waiters.close],
    )
    teller = tasks.Teller(keel.engine, lane.submit, safe)
    return Tasks(room, lane, TaskWords(teller.tells, teller.hears))


def the_records(keel: Keel, safe: Safe) -> Room:
    """What is known of tasks beside themselves: logs, explanations, costs and budgets."""
    poll_seconds = keel.settings.section(TaskSettings).task_claim_poll_ms / 1000
    adder, readers = logs.LineAdder(safe, keel.wakes.committed), log_long_poll.readers()
    desk = RecordDesk(
        keel.engine,
        keel.lanes.writing("task-log", adder.add).submit,
        keel.lanes.writing("budget", budgets.change).submit,
        log_long_poll.Following(keel.engine, readers),
    )
    keel.metrics.gauge(
        "quarterdeck_log_readers_waiting", "Readers that wait for a task's log to grow", "tasks", readers.__len__
    )
    look = log_long_poll.LogLook(keel.engine, readers, poll_seconds)
    return Room(
        task_records.routes(desk),
        runs=[Lookout(keel.wakes, readers, look, poll_seconds, "task-log-lookout")],
        on_drain=[readers.close],
    )
