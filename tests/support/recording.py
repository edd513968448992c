"""What is known of tasks beside themselves, as tests write it: costs, budgets, lines of their logs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentFilter
from quarterdeck.domain.tasks.model.commands import Complete, Cost, Progress
from quarterdeck.domain.tasks.model.cost_types import (
    Budget,
    CostFilter,
    CostGroup,
    GroupBy,
    Period,
    PutBudget,
    RemoveBudget,
    Scope,
)
from quarterdeck.domain.tasks.model.explain_types import TaskExplanation, TaskTree
from quarterdeck.domain.tasks.model.log_types import AddLogLines, Level, LogFilter, LogPage, NewLogLine
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.operations import budgets as budgeting, explain as insight, logs
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.wakeups import Wakeups
from tests.support.keel import Keel, Side
from tests.support.making import struct_of
from tests.support.sealing import NEW, safe_of
from tests.support.working import Working


class Recording:
    """The records of a zone's tasks, on a keel."""

    def __init__(self, work: Working, wakes: Wakeups | None = None) -> None:
        self.work = work
        self.keel: Keel = work.keel
        self.zone_id = work.zone_id
        self.caller: Caller = work.caller
        self.safe = safe_of(NEW)
        self.wakes = wakes or Wakeups()
        self._budgets = self.keel.lanes.add_write_lane("budget", budgeting.change_budgets)
        self.lines = self.keel.lanes.add_write_lane("task-log", logs.LogWriter(self.safe, self.wakes.notify).add)

    # -- money

    async def budget(
        self, scope: Scope = Scope.ZONE, key: str = "", period: Period = Period.TOTAL, **limits: int | None
    ) -> Budget:
        said: dict[str, int | None] = {"usd_micros": None, "tokens": None, **limits}
        return await self._budgets.submit(struct_of(PutBudget, **self._named(scope, key, period), **said))

    async def remove(self, scope: Scope = Scope.ZONE, key: str = "", period: Period = Period.TOTAL) -> Budget:
        return await self._budgets.submit(struct_of(RemoveBudget, **self._named(scope, key, period)))

    def _named(self, scope: Scope, key: str, period: Period) -> dict[str, object]:
        who: dict[str, object] = {"zone_id": self.zone_id, "caller": self.caller, "trace": None}
        return {**who, "scope": scope, "scope_key": key, "period": period}

    async def budgets(self) -> list[Budget]:
        return await self.keel.engine.read(
            lambda tx: budgeting.page(tx, self.caller, self.zone_id, ("", "", ""), 100), zones=[self.zone_id]
        )

    async def spend(self, task: Task, *costs: Cost, key: str | None = None) -> Task:
        return await self.work.moved(
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

    async def complete(self, task: Task, *costs: Cost) -> Task:
        return await self.work.moved(
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

    async def costs(self, group_by: GroupBy, **wanted: object) -> list[CostGroup]:
        plain: dict[str, object] = {"since": None, "until": None, "after": None, "limit": 100}
        asked = struct_of(CostFilter, zone_id=self.zone_id, caller=self.caller, group_by=group_by, **(plain | wanted))
        return await self.keel.engine.read(lambda tx: budgeting.read_costs(tx, asked), zones=[self.zone_id])

    # -- logs

    def saying(self, task: Task, *messages: str, **said: object) -> AddLogLines:
        plain: dict[str, object] = {"level": Level.INFO, "event": "log", "details": "{}", "stack_trace": None}
        lines = tuple(struct_of(NewLogLine, id=new_id(), message=message, **(plain | said)) for message in messages)
        return AddLogLines(
            zone_id=task.zone_id, caller=self.caller, id=task.id, attempt_token=task.attempt_token, lines=lines
        )

    async def say(self, task: Task, *messages: str, **said: object) -> list[str]:
        return await self.lines.submit(self.saying(task, *messages, **said))

    def reading(self, task_id: str, **wanted: object) -> LogFilter:
        plain: dict[str, object] = {"limit": 100, "oldest_first": True, "position": None, "level": None, "event": None}
        return struct_of(LogFilter, zone_id=self.zone_id, caller=self.caller, id=task_id, **(plain | wanted))

    async def page(self, wanted: LogFilter) -> LogPage:
        return await self.keel.engine.read(lambda tx: logs.page(tx, wanted), zones=[self.zone_id])

    async def read(self, task_id: str, **wanted: object) -> list[str]:
        """All of it, page by page: the types of transitions by their new state, and what was said."""
        asked = self.reading(task_id, **wanted)
        found: list[str] = []
        while True:
            page = await self.page(asked)
            found += [str(entry.message if entry.pos is None else entry.new_status) for entry in page.entries]
            if page.is_last:
                return found
            asked = msgspec.structs.replace(asked, position=page.position)

    # -- insight

    async def explain(self, task_id: str) -> TaskExplanation:
        ref = TaskLookup(self.zone_id, task_id, self.caller)
        return await self.keel.engine.read(lambda tx: insight.explain(tx, ref), zones=[self.zone_id])

    async def tree(self, task_id: str, depth: int = 25) -> TaskTree:
        ref = TaskLookup(self.zone_id, task_id, self.caller)
        return await self.keel.engine.read(lambda tx: insight.read_tree(tx, ref, depth), zones=[self.zone_id])


def edges(tree: TaskTree) -> dict[str, Sequence[str]]:
    return {node.id: node.depends_on for node in tree.items}


# -- a day of it


async def a_day_of_records(keel: Keel) -> None:
    """Costs of every kind, budgets that come, are charged and go, and logs that are written, read and followed."""
    work = Working(keel)
    await work.agent("writer", "python")
    records = Recording(work)
    await work.make("before")
    await work.make("noted", depends_on=("before",))
    await work.make("other", required=("python",))
    waits = await records.explain("noted")
    await records.explain("other")
    leased = (await work.claim("writer", 5))[0]
    await records.budget(usd_micros=5)
    await records.budget(Scope.TASK_TYPE, "development", Period.MONTH, tokens=5)
    await records.budget(Scope.TASK, leased.task.id, Period.DAY, tokens=5)
    await records.spend(leased.task, Cost("opus", 1, 2, 3))
    await records.budgets()
    await records.remove(Scope.TASK_TYPE, "development", Period.MONTH)
    for group in GROUPS:
        await records.costs(group)
    await records.say(leased.task, "said")
    for oldest_first in (True, False):
        await records.read(leased.task.id, oldest_first=oldest_first)
    await keel.engine.read(lambda tx: logs.read_log_ends(tx, [(records.zone_id, leased.task.id)]), zones=[work.zone_id])
    await records.tree("noted")
    await work.fail(leased.task)
    await records.remove()
    assert waits.code == "dependencies"
    # An explanation looks at up to a thousand agents. What one page of them costs is asked of a short one.
    few = AgentFilter(zone_id=work.zone_id, limit=5)
    await keel.engine.read(lambda tx: agents.list_agents(tx, few), zones=[work.zone_id])


GROUPS: tuple[GroupBy, ...] = ("task", "agent", "model", "taskType", "day", "workspace")


def grow_records(side: Side, zone_id: str, many: int) -> None:
    """Costs and lines of many tasks, and the budgets of many zones."""
    side.run(
        """
        insert into task_costs
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'c' || n, 'g' || n % 50, 'm', n % 400, 1, 1, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        many,
    )
    side.run(
        """
        insert into cost_days
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, n % 400, 't' || n % 9, 'g' || n, 'm', 1, 1, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        many,
    )
    side.run(
        """
        insert into budgets
        select 'other' || n, 'task', 'b' || n, 'day', 1, null, 0, case when n % 2 = 0 then 9000000000000 + n else 1 end,
               n % 2, 0, 'a', 1, 1
        from generate_series(1, ?) n
        """,
        many,
    )
    side.run(
        """
        insert into task_log_lines
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'c' || n % 100, 'l' || n, n, null, 1, 'INFO', 'log',
               'm', '{}', null, null, 3, 1
        from generate_series(1, ?) n
        """,
        zone_id,
        many,
    )
    side.run("insert into task_log_counts select ?, 'c' || n, n from generate_series(1, ?) n", zone_id, many)
