"""A day of tasks: made, waited for, given out, reported on, changed, put away and removed, so that every statement of
theirs is said."""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.heartbeat_port import ReportedTasks as Heartbeating
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.commands import Cancel, Create, Patch, Retry
from quarterdeck.domain.tasks.model.rows import Strategy, TaskSettings
from quarterdeck.domain.tasks.operations import coordinator_queries, strategies
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.reads import TaskFilter
from quarterdeck.domain.tasks.operations.strategies import PutStrategy, RerankSlice
from quarterdeck.domain.tasks.sweeps import TaskRetention
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel
from tests.support.sealing import NEW, safe_of
from tests.support.working import Working


async def a_day_of_tasks(keel: Keel) -> None:
    work = Working(keel)
    await work.agent("worker", "python")
    await made_and_done(work)
    await failed_and_changed(work)
    await looked_at(work)
    await put_away(work)


async def made_and_done(work: Working) -> None:
    fair = "insert into task_strategies (zone_id, strategy, updated_at) values (?, 'fair', 1)"
    work.keel.side.run(fair, ZONE)
    head = await work.creation(_tagged(work.asking("head", idempotency_key="k", required=("python",)), "a", "b"))
    await work.creation(work.asking("head2", idempotency_key="k", required=("python",)))
    await work.make("tail", depends_on=("head",))
    for claim_id in ("c", "c"):
        leases = await work.claim("worker", 2, claim_id=claim_id)
    await work.complete(leases[0].task)
    [tail] = await work.claim("worker", 1, claim_id="d")
    await work.release(tail.task)
    assert head.created


async def failed_and_changed(work: Working) -> None:
    await work.make("failing", max_retries=0)
    await work.make("after", depends_on=("failing",))
    await work.make("changing")
    await work.moved(
        Patch(zone_id=ZONE, caller=work.caller, id="changing", depends_on=("after",), tags=("c",), tags_json='["c"]')
    )
    # What is refused has said its statements all the same.
    with contextlib.suppress(Problem):
        await work.moved(Patch(zone_id=ZONE, caller=work.caller, id="after", depends_on=("changing",)))
    await work.moved(Cancel(zone_id=ZONE, caller=work.caller, id="failing", reason="r"))
    await work.spread("failing")
    with contextlib.suppress(Problem):
        await work.moved(Retry(zone_id=ZONE, caller=work.caller, id="after"))
    await work.due("after")
    await work.agent("leaving")
    await work.make("left")
    await work.claim("leaving", 5)
    await work.terminate("leaving")


async def looked_at(work: Working) -> None:
    keel = work.keel
    for tags in ((), ("a", "b")):
        wanted = TaskFilter(zone_id=ZONE, caller=work.caller, limit=5, tags=tags, status="COMPLETED")
        await keel.engine.read(partial(tasks.page, filters=wanted), zones=[ZONE])
    await work.show("head")
    await ClaimWakeups(keel.engine, keel.task_waiters, 1.0)([ZONE])
    working = Heartbeating(
        zone_id=ZONE, agent_id="worker", caller=work.caller, task_ids=("head",), is_complete=True, holds_tasks=True
    )
    await tasks.HeartbeatFeedback(keel.engine, keel.tasks.submit, safe_of(NEW)).build_feedback(working)
    await coordinated(keel)


async def coordinated(keel: Keel) -> None:
    """What the coordinator looks for, and one step of ranking anew for each order."""
    await Working(keel).make(required=("nobody can",))
    look = keel.everywhere.read
    await look(lambda tx: coordinator_queries.load_due_tasks(tx, 10))
    kinds = await look(lambda tx: coordinator_queries.ready_classes(tx, [ZONE]))
    await look(lambda tx: coordinator_queries.ready_tasks(tx, dict.fromkeys(kinds, 5)))
    await look(lambda tx: coordinator_queries.waiting_slice(tx, (ZONE, ""), 10))
    await look(coordinator_queries.has_waiting_tasks)
    await look(lambda tx: coordinator_queries.count_tasks(tx, [ZONE], 100))
    await look(lambda tx: coordinator_queries.count_ready_tasks(tx, 100))
    ranks = keel.lanes.add_write_lane("task-rank", strategies.run_batch)
    for strategy in (Strategy.SJF, Strategy.FAIR):
        await ranks.submit(PutStrategy(zone_id=ZONE, caller=admin(), strategy=strategy))
        await ranks.submit(RerankSlice(zone_id=ZONE, leader_term=None))


async def put_away(work: Working) -> None:
    keel = work.keel
    keel.side.run("update agent_tasks set updated_at = 1 where id = ?", "head")
    retention = TaskRetention(keel.everywhere, keel.tasks.submit, TaskSettings())
    await retention.run_once(1)
    keel.side.run("update agent_tasks set updated_at = 1 where id = ?", "head")
    await retention.run_once(1)


def _tagged(ask: Create, *tags: str) -> Create:
    content = msgspec.structs.replace(ask.content, tags=msgspec.json.encode(tags).decode())
    return msgspec.structs.replace(ask, tags=tags, content=content)
