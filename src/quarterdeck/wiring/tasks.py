"""Builds the components for tasks and for their logs, costs and budgets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.domain.agents.heartbeat_port import ReportedProgress, ReportedTasks, SaveProgress, TaskFeedback
from quarterdeck.domain.tasks import detail_routes, operations as tasks, routes as task_routes
from quarterdeck.domain.tasks.detail_routes import TaskDetailHandlers
from quarterdeck.domain.tasks.model import commands as task_commands
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import budgets, log_long_poll, logs
from quarterdeck.domain.tasks.routes import TaskHandlers
from quarterdeck.domain.tasks.sweeps import TaskRetention
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.settings import LogSettings
from quarterdeck.runtime import Component, Runtime


@dataclass(frozen=True, slots=True)
class HeartbeatPort:
    """What tasks do for an agent's heartbeat: return feedback, and check the reported progress."""

    load_task_feedback: Callable[[ReportedTasks], Awaitable[TaskFeedback]]
    check_progress: Callable[[ReportedProgress], Awaitable[SaveProgress]]


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The tasks component, and the parts that other components share."""

    component: Component
    lane: Lane[task_commands.TaskCommand, task_commands.TaskResult]
    heartbeat_port: HeartbeatPort


def build_tasks(runtime: Runtime, cipher: FieldCipher) -> TaskParts:
    settings = runtime.settings.section(TaskSettings)
    polls, poll_seconds = tasks.new_claim_polls(), settings.task_claim_poll_ms / 1000
    batch_runner = tasks.BatchRunner(tasks.timeouts_of(settings), polls, poll_seconds)
    lane: Lane[task_commands.TaskCommand, task_commands.TaskResult] = runtime.lanes.add_write_lane(
        "task", batch_runner.run
    )
    show = runtime.lanes.add_read_lane("task-show", tasks.read_tasks)
    handlers = TaskHandlers(runtime.engine, lane.submit, show.submit, polls, cipher, settings)
    polls.on_undelivered = handlers.release_undelivered
    runtime.metrics.add_gauge("quarterdeck_claims_waiting", "Claims waiting for work", "tasks", polls.__len__)
    claim_wakeups = tasks.ClaimWakeups(runtime.engine, polls, poll_seconds)
    cleanup_interval_ms = runtime.settings.section(LogSettings).retention_cleanup_interval_ms
    component = Component(
        task_routes.routes(handlers),
        [TaskRetention(runtime.cross_zone_engine, lane.submit, settings).sweep(cleanup_interval_ms)],
        startables=[Watcher(runtime.wakeups, polls, claim_wakeups, poll_seconds, "task-lookout")],
        on_drain=[polls.close],
    )
    feedback = tasks.HeartbeatFeedback(runtime.engine, lane.submit, cipher)
    return TaskParts(component, lane, HeartbeatPort(feedback.build_feedback, feedback.check_report))


def build_task_details(runtime: Runtime, cipher: FieldCipher) -> Component:
    """Build the component for task logs, explanations, costs and budgets."""
    poll_seconds = runtime.settings.section(TaskSettings).task_claim_poll_ms / 1000
    log_writer, polls = logs.LogWriter(cipher, runtime.wakeups.notify), log_long_poll.new_log_polls()
    handlers = TaskDetailHandlers(
        runtime.engine,
        runtime.lanes.add_write_lane("task-log", log_writer.add).submit,
        runtime.lanes.add_write_lane("budget", budgets.change_budgets).submit,
        log_long_poll.LogLongPoll(runtime.engine, polls),
    )
    runtime.metrics.add_gauge(
        "quarterdeck_log_readers_waiting", "Long polls waiting for new lines of a task log", "tasks", polls.__len__
    )
    log_wakeups = log_long_poll.LogWakeups(runtime.engine, polls, poll_seconds)
    return Component(
        detail_routes.routes(handlers),
        startables=[Watcher(runtime.wakeups, polls, log_wakeups, poll_seconds, "task-log-lookout")],
        on_drain=[polls.close],
    )
