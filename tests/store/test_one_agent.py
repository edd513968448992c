"""What an agent holds is found by its index, although it has done nearly everything there is."""

from __future__ import annotations

import contextlib

from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.queries import LISTS, Q
from quarterdeck.store.roles import SERVER
from tests.support.asking import ZONE
from tests.support.keel import keel_on
from tests.support.plans import Planner
from tests.support.working import Working

MANY = 20_000
COLUMNS = "string_agg(quote_ident(column_name), ', ') from information_schema.columns where table_name = 'agent_tasks'"


async def test_what_an_agent_holds_costs_the_same_after_it_has_done_everything(postgres_url: str) -> None:
    async with keel_on(postgres_url) as keel:
        await keel.zone()
        work = Working(keel)
        await work.agent()
        await work.make()
        [leased] = await work.claim()
        await work.complete(leased.task)
        [[columns]] = keel.side.run(f"select {COLUMNS} and column_name <> 'id'")
        keel.side.run(
            f"insert into agent_tasks (id, {columns}) select 'copy' || n, {columns} "
            "from agent_tasks, generate_series(1, ?) n",
            MANY,
        )
        keel.side.run("analyze agent_tasks")
        with contextlib.closing(Planner(postgres_url, "force_generic_plan", SERVER)) as planner:
            plans = [
                planner.run(Q.tasks_of_claims(batch=[(ZONE, "a", "c", State.RUNNING)])),
                planner.run(Q.tasks_of_agents(batch=[(ZONE, "a", State.RUNNING)])),
                planner.run(LISTS.tasks_warned(batch=[(ZONE, "a", State.RUNNING)])),
            ]
        assert [plan.scans("Seq Scan") for plan in plans] == [[], [], []]
        assert max(plan.pages for plan in plans) < 20
