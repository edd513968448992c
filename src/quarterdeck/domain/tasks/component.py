"""Builds the components for tasks and for their explanations."""

from __future__ import annotations

from typing import cast

from quarterdeck.core import metric_table
from quarterdeck.core.clock import DAY
from quarterdeck.domain.agents.component import Agents
from quarterdeck.domain.agents.sweeps import AgentRetention
from quarterdeck.domain.tasks import operations
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.routes import explain_routes, heartbeat_routes, task_routes as routes
from quarterdeck.domain.tasks.routes.explain_routes import ExplainHandlers
from quarterdeck.domain.tasks.routes.heartbeat_routes import HeartbeatHandlers
from quarterdeck.domain.tasks.routes.task_routes import TaskHandlers
from quarterdeck.domain.tasks.sweeps import TaskRetention
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.runtime import Component, Runtime
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.sweeps import Sweep


class Tasks:
    def __init__(self, runtime: Runtime, cipher: FieldCipher, agents: Agents) -> None:
        settings = runtime.settings.section(TaskSettings)
        self.polls, poll_seconds = operations.new_claim_polls(), settings.task_claim_poll_ms / 1000
        batch_runner = operations.BatchRunner(operations.timeouts_of(settings), self.polls, poll_seconds)
        self.submit = cast(SubmitTaskCommand, runtime.lanes.add_write_lane("task", batch_runner.run).submit)
        self.show_lane = runtime.lanes.add_read_lane("task-show", operations.read_tasks)
        handlers = TaskHandlers(runtime.engine, self.submit, self.show_lane.submit, self.polls, cipher, settings)
        self.polls.on_undelivered = handlers.release_undelivered
        self.heartbeat_feedback = operations.HeartbeatFeedback(runtime.engine, self.submit)
        heartbeat_handlers = HeartbeatHandlers(
            agents.heartbeat_lane.submit, agents.refresh_lane.submit, self.heartbeat_feedback, cipher
        )
        runtime.metrics.add(metric_table.CLAIMS_WAITING, "tasks", self.polls.__len__)
        claim_wakeups = operations.ClaimWakeups(runtime.engine, self.polls, poll_seconds)
        retention = TaskRetention(runtime.cross_zone_engine, self.submit, settings)
        self.component = Component(
            [*routes.routes(handlers), *heartbeat_routes.routes(heartbeat_handlers)],
            [retention.sweep(runtime.retention_interval_ms), _build_agent_retention(runtime, agents, settings)],
            startables=[Watcher(runtime.wakeups, self.polls, claim_wakeups, poll_seconds, "task-lookout")],
            on_drain=[self.polls.close],
        )


def _build_agent_retention(runtime: Runtime, agents: Agents, settings: TaskSettings) -> Sweep:
    """A terminated agent is kept as long as its tasks: for their archive days plus their retention days."""
    retention = AgentRetention(
        runtime.cross_zone_engine,
        agents.delete_lane.submit,
        coordinator_queries.find_agents_named_by_tasks,
        round((settings.task_archive_days + settings.task_retention_days) * DAY),
    )
    return retention.sweep(runtime.retention_interval_ms)


def build_explanations(runtime: Runtime) -> Component:
    return Component(explain_routes.routes(ExplainHandlers(runtime.engine)))
