"""The running tasks of an agent are found by an index, even if the agent has completed most tasks of the table."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.store.postgres_roles import SERVER
from tests.support.builders import ZONE
from tests.support.query_plans import Planner
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.tasks import TaskHarness

MANY = 20_000
SQLITE_COLUMNS = "group_concat(name, ', ') from pragma_table_info('agent_tasks')"
POSTGRES_COLUMNS = (
    "string_agg(quote_ident(column_name), ', ') from information_schema.columns where table_name = 'agent_tasks'"
)


async def test_running_tasks_of_an_agent_are_found_by_index_among_many_completed(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        tasks = TaskHarness(runtime)
        await tasks.register_agent()
        await tasks.create()
        [leased] = await tasks.claim()
        await tasks.complete(leased.task)
        [[columns]] = runtime.database.execute(f"select {POSTGRES_COLUMNS} and column_name <> 'id'")
        runtime.database.execute(
            f"insert into agent_tasks (id, {columns}) select 'copy' || n, {columns} "
            "from agent_tasks, generate_series(1, ?) n",
            MANY,
        )
        runtime.database.execute("analyze agent_tasks")
        with contextlib.closing(Planner(postgres_url, "force_generic_plan", SERVER)) as planner:
            plans = [
                planner.run(Q.tasks_of_claims(batch=[(ZONE, "a", "c", State.RUNNING)])),
                planner.run(Q.tasks_of_agents(batch=[(ZONE, "a", State.RUNNING)])),
                planner.run(LISTS.tasks_warned(batch=[(ZONE, "a", State.RUNNING)])),
            ]
        assert [plan.scans("Seq Scan") for plan in plans] == [[], [], []]
        assert max(plan.pages for plan in plans) < 20


async def test_analyze_on_sqlite_does_not_cause_table_scans(sqlite_url: str) -> None:
    async with open_runtime(sqlite_url) as runtime:
        await runtime.put_zone()
        tasks = TaskHarness(runtime)
        await tasks.register_agent()
        await tasks.create()
        [leased] = await tasks.claim()
        await tasks.complete(leased.task)
        [[columns]] = runtime.database.execute(f"select {SQLITE_COLUMNS} where name <> 'id'")
        runtime.database.execute(
            f"insert into agent_tasks (id, {columns}) with recursive n (n) as (select 1 union all select n + 1 from n "
            f"where n < ?) select 'copy' || n, {columns} from n, agent_tasks",
            MANY,
        )
        assert await table_scans(runtime) == []
        runtime.database.execute("analyze")
        assert await table_scans(runtime) == []
    async with open_runtime(sqlite_url) as runtime:
        assert await table_scans(runtime) == []
        assert runtime.database.count("sqlite_stat1") == 0


async def table_scans(runtime: RuntimeHarness) -> list[str]:
    """The tables that SQLite would scan for a claim."""
    bound = Q.tasks_of_claims(batch=[(ZONE, "a", "c", State.RUNNING)])
    explained = replace(bound.statement, sqlite=f"explain query plan {bound.statement.sqlite}")
    [plan] = await runtime.engine.read(lambda tx: tx.read(replace(bound, statement=explained)))
    return [str(row[3]) for row in plan if str(row[3]).startswith("SCAN t")]
