"""A workload that runs every statement of tasks: create, claim, report, change, archive and delete."""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import Cancel, Create, Patch, Retry
from quarterdeck.domain.tasks.model.heartbeat_types import ReportedTasks
from quarterdeck.domain.tasks.model.rows import Strategy, TaskSettings
from quarterdeck.domain.tasks.operations import coordinator_queries, strategies
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.reads import TaskFilter
from quarterdeck.domain.tasks.operations.strategies import PutStrategy, RerankSlice
from quarterdeck.domain.tasks.sweeps import TaskRetention
from tests.support.builders import ZONE, admin
from tests.support.runtime import RuntimeHarness
from tests.support.tasks import TaskHarness


async def run_task_workload(runtime: RuntimeHarness) -> None:
    harness = TaskHarness(runtime)
    await harness.register_agent("worker", "python")
    await create_and_complete(harness)
    await fail_and_change(harness)
    await read_and_report(harness)
    await archive_and_delete(harness)


async def create_and_complete(harness: TaskHarness) -> None:
    insert_strategy = "insert into task_strategies (zone_id, strategy, updated_at) values (?, 'fair', 1)"
    harness.runtime.database.execute(insert_strategy, ZONE)
    head = await harness.submit_create(
        _with_tags(harness.create_command("head", idempotency_key="k", required=("python",)), "a", "b")
    )
    await harness.submit_create(harness.create_command("head2", idempotency_key="k", required=("python",)))
    await harness.create("tail", depends_on=("head",))
    for claim_id in ("c", "c"):
        leases = await harness.claim("worker", 2, claim_id=claim_id)
    await harness.complete(leases[0].task)
    [tail] = await harness.claim("worker", 1, claim_id="d")
    await harness.release(tail.task)
    assert head.created


async def fail_and_change(harness: TaskHarness) -> None:
    await harness.create("failing", max_retries=0)
    await harness.create("after", depends_on=("failing",))
    await harness.create("changing")
    await harness.submit(
        Patch(zone_id=ZONE, caller=harness.caller, id="changing", depends_on=("after",), tags=("c",), tags_json='["c"]')
    )
    # A refused command has run its statements too.
    with contextlib.suppress(Problem):
        await harness.submit(Patch(zone_id=ZONE, caller=harness.caller, id="after", depends_on=("changing",)))
    await harness.submit(Cancel(zone_id=ZONE, caller=harness.caller, id="failing", reason="r"))
    await harness.unblock_dependents("failing")
    with contextlib.suppress(Problem):
        await harness.submit(Retry(zone_id=ZONE, caller=harness.caller, id="after"))
    await harness.make_available("after")
    await harness.register_agent("leaving")
    await harness.create("left")
    await harness.claim("leaving", 5)
    await harness.terminate_agent("leaving")


async def read_and_report(harness: TaskHarness) -> None:
    runtime = harness.runtime
    for tags in ((), ("a", "b")):
        filters = TaskFilter(zone_id=ZONE, caller=harness.caller, limit=5, tags=tags, status="COMPLETED")
        await runtime.engine.read(partial(tasks.list_tasks, filters=filters), zones=[ZONE])
    await harness.read("head")
    await ClaimWakeups(runtime.engine, runtime.task_claim_polls, 1.0)([ZONE])
    reported = ReportedTasks(
        zone_id=ZONE, agent_id="worker", caller=harness.caller, task_ids=("head",), is_complete=True, holds_tasks=True
    )
    await runtime.tasks.heartbeat_feedback.build_feedback(reported)
    await run_coordinator_queries(runtime)


async def run_coordinator_queries(runtime: RuntimeHarness) -> None:
    """Run the coordinator's queries, and one slice of reranking for each strategy."""
    await TaskHarness(runtime).create(required=("no-such-capability",))
    read = runtime.cross_zone_engine.read
    await read(lambda tx: coordinator_queries.load_due_tasks(tx, 10))
    classes = await read(lambda tx: coordinator_queries.load_ready_classes(tx, [ZONE]))
    await read(lambda tx: coordinator_queries.load_ready_tasks(tx, dict.fromkeys(classes, 5)))
    await read(lambda tx: coordinator_queries.load_waiting_slice(tx, (ZONE, ""), 10))
    await read(coordinator_queries.has_waiting_tasks)
    await read(lambda tx: coordinator_queries.count_tasks(tx, [ZONE], 100))
    await read(lambda tx: coordinator_queries.count_ready_tasks(tx, 100))
    lane = runtime.lanes.add_write_lane("task-rank", strategies.run_batch)
    for strategy in (Strategy.SJF, Strategy.FAIR):
        await lane.submit(PutStrategy(zone_id=ZONE, caller=admin(), strategy=strategy))
        await lane.submit(RerankSlice(zone_id=ZONE, leader_term=None))


async def archive_and_delete(harness: TaskHarness) -> None:
    runtime = harness.runtime
    runtime.database.execute("update agent_tasks set updated_at = 1 where id = ?", "head")
    retention = TaskRetention(runtime.cross_zone_engine, runtime.submit_task, TaskSettings())
    await retention.run_once(1)
    runtime.database.execute("update agent_tasks set updated_at = 1 where id = ?", "head")
    await retention.run_once(1)


def _with_tags(command: Create, *tags: str) -> Create:
    content = msgspec.structs.replace(command.content, tags=msgspec.json.encode(tags).decode())
    return msgspec.structs.replace(command, tags=tags, content=content)
