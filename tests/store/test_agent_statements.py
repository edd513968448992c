"""What an agent holds is found by its index, although it has done nearly everything there is."""

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
LISTED = "group_concat(name, ', ') from pragma_table_info('agent_tasks')"
COLUMNS = "string_agg(quote_ident(column_name), ', ') from information_schema.columns where table_name = 'agent_tasks'"


async def test_what_an_agent_holds_costs_the_same_after_it_has_done_everything(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        work = TaskHarness(keel)
        await work.register_agent()
        await work.create()
        [leased] = await work.claim()
        await work.complete(leased.task)
        [[columns]] = keel.database.execute(f"select {COLUMNS} and column_name <> 'id'")
        keel.database.execute(
            f"insert into agent_tasks (id, {columns}) select 'copy' || n, {columns} "
            "from agent_tasks, generate_series(1, ?) n",
            MANY,
        )
        keel.database.execute("analyze agent_tasks")
        with contextlib.closing(Planner(postgres_url, "force_generic_plan", SERVER)) as planner:
            plans = [
                planner.run(Q.tasks_of_claims(batch=[(ZONE, "a", "c", State.RUNNING)])),
                planner.run(Q.tasks_of_agents(batch=[(ZONE, "a", State.RUNNING)])),
                planner.run(LISTS.tasks_warned(batch=[(ZONE, "a", State.RUNNING)])),
            ]
        assert [plan.scans("Seq Scan") for plan in plans] == [[], [], []]
        assert max(plan.pages for plan in plans) < 20


async def test_statistics_that_somebody_makes_do_not_have_sqlite_read_whole_tables(sqlite_url: str) -> None:
    async with open_runtime(sqlite_url) as keel:
        await keel.put_zone()
        work = TaskHarness(keel)
        await work.register_agent()
        await work.create()
        [leased] = await work.claim()
        await work.complete(leased.task)
        [[columns]] = keel.database.execute(f"select {LISTED} where name <> 'id'")
        keel.database.execute(
            f"insert into agent_tasks (id, {columns}) with recursive n (n) as (select 1 union all select n + 1 from n "
            f"where n < ?) select 'copy' || n, {columns} from n, agent_tasks",
            MANY,
        )
        assert await scanned(keel) == []
        keel.database.execute("analyze")
        assert await scanned(keel) == []
    async with open_runtime(sqlite_url) as keel:
        assert await scanned(keel) == []
        assert keel.database.count("sqlite_stat1") == 0


async def scanned(keel: RuntimeHarness) -> list[str]:
    """What SQLite would read all of for a claim."""
    asked = Q.tasks_of_claims(batch=[(ZONE, "a", "c", State.RUNNING)])
    explained = replace(asked.statement, sqlite=f"explain query plan {asked.statement.sqlite}")
    [plan] = await keel.engine.read(lambda tx: tx.read(replace(asked, statement=explained)))
    return [str(row[3]) for row in plan if str(row[3]).startswith("SCAN t")]
