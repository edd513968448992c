"""Tasks, agents, costs, budgets, webhooks and coordinator through the SDK, against a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, LIFECYCLE
from quarterdeck.core.ids import new_id
from quarterdeck.sdk import Quarterdeck
from quarterdeck.sdk.errors import Conflict, Invalid, NotFound, Problem, TimedOut
from quarterdeck.sdk.options import NewTask
from quarterdeck.sdk.sync import Quarterdeck as SyncQuarterdeck
from quarterdeck.sdk.work_types import Cost, Task, TaskCompletion, TaskFailure, TaskProgress, TaskReturn
from tests.sdk.fake_servers import LONG_TIMEOUTS, collect, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import count_calls
from tests.support.zone import FreshZone

TASK_TYPE = "research"


def admin_client(zone: FreshZone, url: str | None = None) -> Quarterdeck:
    token = zone.token(LIFECYCLE, COORDINATOR_ADMIN, ADMIN)
    return Quarterdeck.connect(url or zone.server.url, token, zone.id, options=LONG_TIMEOUTS)


def expect_task(outcome: Task | Problem) -> Task:
    assert isinstance(outcome, Task), outcome
    return outcome


async def test_task_is_created_listed_patched_canceled_retried_and_archived(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        task = await qd.tasks.create(
            "read it", TASK_TYPE, priority=8, input_context={"page": 1}, tags=["a", "b"], metadata={"by": "test"}
        )
        assert (task.status, task.priority, task.input_context) == ("PENDING", 8, {"page": 1})
        assert task.zone_id == zone.id
        other = await qd.tasks.create("skim it", TASK_TYPE, priority=2)
        assert {each.id for each in await collect(qd.tasks.list())} == {task.id, other.id}
        assert [each.id for each in await collect(qd.tasks.list(min_priority=8, tags=["b"]))] == [task.id]
        assert [each.id for each in await collect(qd.tasks.list(status="PAUSED"))] == []
        later = await collect(qd.tasks.list(created_after=datetime.now(UTC).replace(year=2099)))
        assert later == []
        changed = await qd.tasks.patch(task.id, priority=3, tags=["c"])
        assert (changed.priority, changed.tags) == (3, ["c"])
        assert (await qd.tasks.pause(task.id)).status == "PAUSED"
        assert (await qd.tasks.resume(task.id)).status == "PENDING"
        canceled = await qd.tasks.cancel(task.id, reason="done")
        assert (canceled.status, canceled.reason, canceled.is_over) == ("ABORTED", "done", True)
        assert (await qd.tasks.retry(task.id)).status == "PENDING"
        await qd.tasks.cancel(task.id)
        assert (await qd.tasks.archive(task.id)).status == "ARCHIVED"
        with pytest.raises(NotFound):
            await qd.tasks.get("no-such-task")
        with pytest.raises(Conflict):
            await qd.tasks.pause(task.id)


async def test_create_many_returns_an_outcome_per_task(zone: FreshZone) -> None:
    first, second = new_id(), new_id()
    new_tasks: list[NewTask] = [
        {"title": "second", "task_type": TASK_TYPE, "id": second, "depends_on": [first]},
        {"title": "first", "task_type": TASK_TYPE, "id": first},
        {"title": "lost", "task_type": TASK_TYPE, "depends_on": ["no-such-task"]},
    ]
    async with sdk_client(zone) as qd:
        after, before, lost = await qd.tasks.create_many(new_tasks, key="key-1")
        assert (expect_task(after).id, expect_task(before).id) == (second, first)
        assert isinstance(lost, Invalid)
        assert lost.code == "unknown_dependency"
        tree = await qd.tasks.tree(first)
        assert {(node.id, node.depth) for node in tree.items} == {(first, 0), (second, 1)}
        explanation = await qd.tasks.explain(second)
        assert (explanation.code, explanation.task["id"]) == ("dependencies", second)
        again = await qd.tasks.create_many(new_tasks[:2], key="key-1")
        assert [expect_task(each).id for each in again] == [second, first]
        assert len(await collect(qd.tasks.list())) == 2


async def test_agent_is_registered_sends_heartbeats_gets_a_token_and_is_terminated(zone: FreshZone) -> None:
    async with admin_client(zone) as qd:
        agent = await qd.agents.register("dev-1", capabilities=["python"], max_concurrent_tasks=3, pool="a")
        assert (agent.status, agent.capabilities, agent.max_concurrent_tasks) == ("IDLE", ["python"], 3)
        assert [each.id for each in await collect(qd.agents.list(capability="python"))] == ["dev-1"]
        assert await collect(qd.agents.list(coordinator_enabled=False)) == []
        assert (await qd.agents.heartbeat("dev-1", status="degraded")).next > 0
        assert (await qd.agents.health("dev-1")).status == "DEGRADED"
        token = (await qd.agents.token("dev-1", ttl_seconds=60)).token
        async with Quarterdeck.connect(zone.server.url, token, zone.id) as agent_client:
            assert (await agent_client.agents.heartbeat("dev-1")).cancel == []
        assert await collect(qd.agents.tasks("dev-1")) == []
        assert (await qd.agents.terminate("dev-1", reason="done")).status == "TERMINATED"
        assert (await qd.agents.get("dev-1")).status == "TERMINATED"


async def test_attempts_are_claimed_and_reported_in_bulk(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        await qd.agents.register("dev-1", max_concurrent_tasks=10)
        tasks = [expect_task(each) for each in await qd.tasks.create_many([_new_task(n) for n in range(4)])]
        leases = await qd.tasks.claim("dev-1", "claim-1", most=10, task_types=[TASK_TYPE])
        assert {lease.id for lease in leases} == {task.id for task in tasks}
        assert {lease.id for lease in await qd.tasks.claim("dev-1", "claim-1", most=10)} == {
            lease.id for lease in leases
        }
        a, b, c, d = ((lease.id, lease.attempt_token) for lease in leases)
        cost = [Cost("m", 10, 5, 0.5)]
        progress = TaskProgress(id=a[0], attempt_token=a[1], progress_percent=40, costs=cost)
        assert [item.error for item in await qd.tasks.progress([progress])] == [None]
        await qd.tasks.say(a[0], [{"message": "hello", "level": "WARN"}], attempt_token=a[1])
        completed, stale = await qd.tasks.complete([TaskCompletion(*a), TaskCompletion(b[0], "stale-token")])
        assert completed.status == "COMPLETED"
        assert stale.error is not None
        assert stale.error.error == "stale_attempt"
        [failed] = await qd.tasks.fail([TaskFailure(*c, "no", None, False)])
        assert failed.status == "FAILED"
        assert [item.status for item in await qd.tasks.release([TaskReturn(*b), TaskReturn(*d)])] == [
            "PENDING",
            "PENDING",
        ]
        lines = await collect(qd.tasks.logs(a[0], level="WARN"))
        assert [line.message for line in lines] == ["hello"]
        assert (await qd.tasks.get(a[0])).costs.usd == 0.5
        assert [(each.key, each.usd) for each in await collect(qd.costs.list("model"))] == [("m", 0.5)]


def _new_task(number: int) -> NewTask:
    return {"title": f"number {number}", "task_type": TASK_TYPE}


async def test_wait_for_tasks_does_not_poll(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        await qd.agents.register("dev-1", max_concurrent_tasks=10)
        tasks = [expect_task(each) for each in await qd.tasks.create_many([_new_task(n) for n in range(3)])]
        ids = [task.id for task in tasks]
        with pytest.raises(TimedOut):
            await qd.tasks.wait(ids, timeout=0.05)
        waiter = asyncio.create_task(qd.tasks.wait(ids, timeout=30))
        leases = await qd.tasks.claim("dev-1", "c", most=3)
        tokens = [(lease.id, lease.attempt_token) for lease in leases]
        await qd.tasks.complete([TaskCompletion(*tokens[0]), TaskCompletion(*tokens[1])])
        await qd.tasks.cancel(tokens[2][0])
        ended = await waiter
        assert [task.id for task in ended] == ids
        assert sorted(task.status for task in ended) == ["ABORTED", "COMPLETED", "COMPLETED"]
        # Each task is read twice when the wait starts, and once or twice after its event.
        assert count_calls(proxy.requests, b"GET /api/v1/agent-tasks/") <= 4 * len(ids)
        with pytest.raises(NotFound):
            await qd.tasks.wait(["no-such-task"])


async def test_create_with_a_lost_response_creates_one_task(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        proxy.cut_next(b"POST /api/v1/agent-tasks")
        task = await qd.tasks.create("once", TASK_TYPE)
        assert proxy.cut_count == 1
        assert [each.id for each in await collect(qd.tasks.list())] == [task.id]


async def test_members_budgets_webhooks_and_coordinator_calls_work(zone: FreshZone) -> None:
    async with admin_client(zone) as qd:
        assert (await qd.members.put("ann", "OWNER")).role == "OWNER"
        await qd.members.put("bob", "MEMBER")
        assert (await qd.members.get("bob")).zone_id == zone.id
        await qd.members.remove("bob")
        assert [each.subject for each in await collect(qd.members.list())] == ["ann"]
        budget = await qd.budgets.put("taskType", "day", key=TASK_TYPE, usd=2.5)
        assert (budget.usd, budget.is_spent) == (2.5, False)
        assert [each.key for each in await collect(qd.budgets.list())] == [TASK_TYPE]
        await qd.budgets.remove("taskType", "day", key=TASK_TYPE)
        hook = await qd.webhooks.create("https://example.com/hook", types=["alert"])
        assert hook.secret
        assert (await qd.webhooks.patch(hook.id, description="for operators")).description == "for operators"
        assert (await qd.webhooks.rotate_secret(hook.id)).secret not in (None, hook.secret)
        delivery = await qd.webhooks.test(hook.id)
        assert delivery.id in [each.id for each in await collect(qd.webhooks.deliveries(hook.id))]
        assert [each.id for each in await collect(qd.webhooks.list())] == [hook.id]
        assert (await qd.webhooks.get(hook.id)).secret is None
        await qd.webhooks.remove(hook.id)
        assert await qd.coordinator.choose("sjf") == await qd.coordinator.strategy() == "sjf"
        assert (await qd.coordinator.status()).stats.pending_tasks >= 0
        assert (await qd.coordinator.recover()).timed_out == 0
        assert [line.zone_id for line in await collect(qd.coordinator.logs()) if line.zone_id != zone.id] == []


def test_sync_client_completes_a_task(zone: FreshZone) -> None:
    with SyncQuarterdeck.connect(zone.server.url, zone.token(), zone.id) as qd:
        qd.agents.register("dev-1")
        task = qd.tasks.create("read it", TASK_TYPE)
        [lease] = qd.tasks.claim("dev-1", "c")
        qd.tasks.complete([TaskCompletion(lease.id, lease.attempt_token)])
        assert [each.status for each in qd.tasks.wait([task.id], timeout=30)] == ["COMPLETED"]
        assert [each.id for each in qd.tasks.list()] == [task.id]


async def test_coordinator_log_lists_events_of_agents(zone: FreshZone) -> None:
    async with admin_client(zone) as qd:
        await qd.agents.register("dev-1")
        [line] = await collect(qd.coordinator.logs(level="INFO"))
        assert (line.zone_id, line.event, line.agent_id, line.task_id) == (zone.id, "agent.registered", "dev-1", None)
