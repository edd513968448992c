"""Builds the component for the logs of tasks."""

from __future__ import annotations

from quarterdeck.core import metric_table
from quarterdeck.domain.task_logs.operations.long_poll import LogLongPoll, LogWakeups, new_log_polls
from quarterdeck.domain.task_logs.operations.writer import LogWriter
from quarterdeck.domain.task_logs.routes import LogHandlers, routes
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.runtime import Component, Runtime
from quarterdeck.engine.secrets import FieldCipher


class TaskLogs:
    def __init__(self, runtime: Runtime, cipher: FieldCipher) -> None:
        poll_seconds = runtime.settings.section(TaskSettings).task_claim_poll_ms / 1000
        polls = new_log_polls()
        self.lane = runtime.lanes.add_write_lane("task-log", LogWriter(cipher, runtime.wakeups.notify).add)
        handlers = LogHandlers(runtime.engine, self.lane.submit, LogLongPoll(runtime.engine, polls))
        runtime.metrics.add(metric_table.LOG_READERS_WAITING, "tasks", polls.__len__)
        wakeups = LogWakeups(runtime.engine, polls, poll_seconds)
        self.component = Component(
            routes(handlers),
            startables=[Watcher(runtime.wakeups, polls, wakeups, poll_seconds, "task-log-lookout")],
            on_drain=[polls.close],
        )
