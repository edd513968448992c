"""A harness for costs, budgets, logs and explanations of tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentFilter
from quarterdeck.domain.costs.component import Costs
from quarterdeck.domain.costs.model import (
    Budget,
    Cost,
    CostFilter,
    CostGroup,
    GroupBy,
    Period,
    PutBudget,
    RemoveBudget,
    Scope,
)
from quarterdeck.domain.costs.operations import reads as cost_reads
from quarterdeck.domain.task_logs.component import TaskLogs
from quarterdeck.domain.task_logs.model import AddLogLines, LogFilter, LogPage
from quarterdeck.domain.task_logs.operations import reads as log_reads
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import Complete, Progress
from quarterdeck.domain.tasks.model.explain_types import TaskExplanation, TaskTree
from quarterdeck.domain.tasks.model.log_lines import Level, NewLogLine
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.operations import explain
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from tests.support.runtime import DirectDatabase, RuntimeHarness
from tests.support.structs import build_struct
from tests.support.tasks import TaskHarness


class TaskDetailHarness:
    """The costs, budgets and logs of a zone's tasks, on a runtime."""

    def __init__(self, task_harness: TaskHarness) -> None:
        self.task_harness = task_harness
        self.runtime: RuntimeHarness = task_harness.runtime
        self.zone_id = task_harness.zone_id
        self.caller: Caller = task_harness.caller
        self.cipher, self.wakeups = self.runtime.cipher, self.runtime.wakeups
        self._budget_lane = Costs(self.runtime.shared, tasks.states_statement).lane
        self.log_lane = TaskLogs(self.runtime.shared, self.cipher).lane

    # -- costs and budgets

    async def put_budget(
        self, scope: Scope = Scope.ZONE, key: str = "", period: Period = Period.TOTAL, **limits: int | None
    ) -> Budget:
        limit_fields: dict[str, int | None] = {"usd_micros": None, "tokens": None, **limits}
        return await self._budget_lane.submit(
            build_struct(PutBudget, **self._budget_fields(scope, key, period), **limit_fields)
        )

    async def remove_budget(self, scope: Scope = Scope.ZONE, key: str = "", period: Period = Period.TOTAL) -> Budget:
        return await self._budget_lane.submit(build_struct(RemoveBudget, **self._budget_fields(scope, key, period)))

    def _budget_fields(self, scope: Scope, key: str, period: Period) -> dict[str, object]:
        identity: dict[str, object] = {"zone_id": self.zone_id, "caller": self.caller, "trace": None}
        return {**identity, "scope": scope, "scope_key": key, "period": period}

    async def list_budgets(self) -> list[Budget]:
        return await self.runtime.engine.read(
            lambda tx: cost_reads.list_budgets(tx, self.caller, self.zone_id, ("", "", ""), 100), zones=[self.zone_id]
        )

    async def report_costs(self, task: Task, *costs: Cost, key: str | None = None) -> Task:
        return await self.task_harness.submit(
            Progress(
                zone_id=task.zone_id,
                caller=self.caller,
                id=task.id,
                attempt_token=task.attempt_token,
                percent=None,
                step=None,
                checkpoint=None,
                costs=costs,
                idempotency_key=key,
            )
        )

    async def complete_with_costs(self, task: Task, *costs: Cost) -> Task:
        return await self.task_harness.submit(
            Complete(
                zone_id=task.zone_id,
                caller=self.caller,
                id=task.id,
                attempt_token=task.attempt_token,
                output="null",
                summary=None,
                costs=costs,
            )
        )

    async def read_costs(self, group_by: GroupBy, **fields: object) -> list[CostGroup]:
        defaults: dict[str, object] = {"since_day": None, "until_day": None, "after": None, "limit": 100}
        filters = build_struct(
            CostFilter, zone_id=self.zone_id, caller=self.caller, group_by=group_by, **(defaults | fields)
        )
        return await self.runtime.engine.read(lambda tx: cost_reads.read_costs(tx, filters), zones=[self.zone_id])

    # -- logs

    def add_lines_command(self, task: Task, *messages: str, **fields: object) -> AddLogLines:
        defaults: dict[str, object] = {"level": Level.INFO, "event": "log", "details": "{}", "stack_trace": None}
        lines = tuple(
            build_struct(NewLogLine, id=new_id(), message=message, **(defaults | fields)) for message in messages
        )
        return AddLogLines(
            zone_id=task.zone_id, caller=self.caller, id=task.id, attempt_token=task.attempt_token, lines=lines
        )

    async def add_lines(self, task: Task, *messages: str, **fields: object) -> list[str]:
        return await self.log_lane.submit(self.add_lines_command(task, *messages, **fields))

    def log_filter(self, task_id: str, **fields: object) -> LogFilter:
        defaults: dict[str, object] = {
            "limit": 100,
            "oldest_first": True,
            "position": None,
            "level": None,
            "event": None,
        }
        return build_struct(LogFilter, zone_id=self.zone_id, caller=self.caller, id=task_id, **(defaults | fields))

    async def read_log_page(self, filters: LogFilter) -> LogPage:
        return await self.runtime.engine.read(lambda tx: log_reads.read_log(tx, filters), zones=[self.zone_id])

    async def read_log(self, task_id: str, **fields: object) -> list[str]:
        """Read all pages: the new state of each transition, and the message of each line."""
        filters = self.log_filter(task_id, **fields)
        found: list[str] = []
        while True:
            page = await self.read_log_page(filters)
            found += [str(entry.message if entry.pos is None else entry.new_status) for entry in page.entries]
            if page.is_last:
                return found
            filters = msgspec.structs.replace(filters, position=page.position)

    # -- explanations

    async def explain(self, task_id: str) -> TaskExplanation:
        ref = TaskLookup(self.zone_id, task_id, self.caller)
        return await self.runtime.engine.read(lambda tx: explain.explain(tx, ref), zones=[self.zone_id])

    async def read_tree(self, task_id: str, depth: int = 25) -> TaskTree:
        ref = TaskLookup(self.zone_id, task_id, self.caller)
        return await self.runtime.engine.read(lambda tx: explain.read_tree(tx, ref, depth), zones=[self.zone_id])


def dependencies_by_task(tree: TaskTree) -> dict[str, Sequence[str]]:
    return {node.id: node.depends_on for node in tree.items}


# -- workload


async def run_task_detail_workload(runtime: RuntimeHarness) -> None:
    """Run every statement of costs, budgets, logs and explanations."""
    task_harness = TaskHarness(runtime)
    await task_harness.register_agent("writer", "python")
    harness = TaskDetailHarness(task_harness)
    await task_harness.create("before")
    await task_harness.create("noted", depends_on=("before",))
    await task_harness.create("other", required=("python",))
    explanation = await harness.explain("noted")
    await harness.explain("other")
    claimed = (await task_harness.claim("writer", 5))[0]
    await harness.put_budget(usd_micros=5)
    await harness.put_budget(Scope.TASK_TYPE, "development", Period.MONTH, tokens=5)
    await harness.put_budget(Scope.TASK, claimed.task.id, Period.DAY, tokens=5)
    await harness.report_costs(claimed.task, Cost("opus", 1, 2, 3))
    await harness.list_budgets()
    await harness.remove_budget(Scope.TASK_TYPE, "development", Period.MONTH)
    for group in GROUPS:
        await harness.read_costs(group)
    await harness.add_lines(claimed.task, "line")
    for oldest_first in (True, False):
        await harness.read_log(claimed.task.id, oldest_first=oldest_first)
    await runtime.engine.read(
        lambda tx: log_reads.read_log_ends(tx, [(harness.zone_id, claimed.task.id)]), zones=[task_harness.zone_id]
    )
    await harness.read_tree("noted")
    await task_harness.fail(claimed.task)
    await harness.remove_budget()
    assert explanation.code == "dependencies"
    # An explanation reads up to a thousand agents. A short page shows the cost per page.
    filters = AgentFilter(zone_id=task_harness.zone_id, limit=5)
    await runtime.engine.read(lambda tx: agents.list_agents(tx, filters), zones=[task_harness.zone_id])


GROUPS: tuple[GroupBy, ...] = ("task", "agent", "model", "taskType", "day", "workspace")


def add_task_detail_rows(database: DirectDatabase, zone_id: str, count: int) -> None:
    """Insert costs and log lines of many tasks, and budgets of many zones."""
    database.execute(
        """
        insert into task_costs
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'c' || n, 'g' || n % 50, 'm', n % 400, 1, 1, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        count,
    )
    database.execute(
        """
        insert into cost_days
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, n % 400, 't' || n % 9, 'g' || n, 'm', 1, 1, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        count,
    )
    database.execute(
        """
        insert into budgets
        select 'other' || n, 'task', 'b' || n, 'day', 1, null, 0, case when n % 2 = 0 then 9000000000000 + n else 1 end,
               n % 2, 0, 'a', 1, 1
        from generate_series(1, ?) n
        """,
        count,
    )
    database.execute(
        """
        insert into task_log_lines
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'c' || n % 100, 'l' || n, n, null, 1, 'INFO', 'log',
               'm', '{}', null, null, 3, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        count,
    )
    database.execute("insert into task_log_counts select ?, 'c' || n, n from generate_series(1, ?) n", zone_id, count)
