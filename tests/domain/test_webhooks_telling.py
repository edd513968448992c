"""Webhooks on both engines, from the log into rows: what each endpoint named, exactly once, within a bound."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from quarterdeck.domain.webhooks.event_fanout import WebhookFanout
from quarterdeck.domain.webhooks.model import DeliveryState, Endpoint
from quarterdeck.engine.leases import LeaseLost
from tests.support.endpoint import Endpoint as Receiver, endpoint
from tests.support.hooking import STARTED, Hooks, hooks_on

COMPLETED = ("task.completed", "RUNNING", "COMPLETED")
OTHER = "other"


@pytest.fixture
async def hooks(engine_url: str) -> AsyncIterator[Hooks]:
    async with hooks_on(engine_url) as made:
        yield made


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with endpoint() as listening:
        yield listening


async def test_an_endpoint_hears_of_what_it_named_in_its_own_zone_and_from_its_beginning_on(
    hooks: Hooks, there: Receiver
) -> None:
    await hooks.keel.zone(OTHER)
    await hooks.happen(STARTED, subject="before")
    usual, every = await hooks.endpoint(there.url), await hooks.endpoint(there.url, "*")
    picky = await hooks.endpoint(there.url, "agent.terminated", "task.created")
    foreign = await hooks.endpoint(there.url, "*", zone_id=OTHER)
    await hooks.happen(("task.created", None, "PENDING"), STARTED, ("task.progressed", "RUNNING", "RUNNING"))
    await hooks.happen(("agent.terminated", "IDLE", "TERMINATED"), ("session.spawn", None, "active"))
    await hooks.tell()

    async def told(of: Endpoint) -> list[str]:
        return [row.type for row in await hooks.deliveries(of)]

    assert await told(usual) == ["task.status_changed"]
    assert await told(picky) == ["task.created", "agent.terminated"]
    assert await told(every) == ["task.created", "task.status_changed", "task.progressed", "agent.terminated"]
    assert await told(foreign) == []


async def test_whoever_goes_on_from_an_older_position_writes_nothing_twice(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.happen(STARTED, COMPLETED)
    began = hooks.keel.side.one("select position from sinks where name = 'webhooks'")
    await hooks.tell()
    # As if the rows had been written, and the process had died before its position was.
    hooks.keel.side.run("update sinks set position = ? where name = 'webhooks'", began)
    await hooks.happen(STARTED)
    follower = hooks.another_teller()
    await hooks.tell(follower)
    rows = await hooks.deliveries(made)
    assert len(rows) == len({row.id for row in rows}) == 3
    head = hooks.keel.side.one("select pos from log_head")
    assert hooks.keel.side.one("select position from sinks where name = 'webhooks'") == head


async def test_a_teller_whose_term_is_over_writes_neither_rows_nor_position(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.tell()
    old = await hooks.fence()
    hooks.keel.side.run("update leases set term = term + 1 where name = 'webhooks'")
    before = hooks.keel.side.one("select position from sinks where name = 'webhooks'")
    await hooks.happen(STARTED)
    with pytest.raises(LeaseLost):
        await hooks.teller.run_cycle(old)
    assert await hooks.deliveries(made) == []
    assert hooks.keel.side.one("select position from sinks where name = 'webhooks'") == before


async def test_where_nobody_hears_the_sink_rests_and_later_goes_with_the_head(hooks: Hooks) -> None:
    await hooks.tell()
    await hooks.happen(STARTED)
    assert not await hooks.teller.is_due()
    hooks.keel.side.run("update sinks set updated_at = updated_at - 20000 where name = 'webhooks'")
    assert await hooks.teller.is_due()
    await hooks.tell()
    assert hooks.teller.position == hooks.keel.side.one("select pos from log_head")
    made = await hooks.endpoint("http://127.0.0.1:9/", "*")
    assert await hooks.teller.is_due()
    await hooks.happen(STARTED)
    await hooks.tell()
    assert [row.type for row in await hooks.deliveries(made)] == ["task.status_changed"]


async def test_a_log_longer_than_one_turn_is_told_to_its_end(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.happen(*[STARTED] * 450)
    await hooks.tell()
    rows = await hooks.deliveries(made)
    assert len(rows) == 450
    assert [row.pos for row in rows] == sorted(row.pos for row in rows)


async def test_an_event_that_nobody_can_read_is_passed_over_and_counted(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.happen(STARTED, STARTED)
    hooks.keel.side.run(
        "update events set data = 'no json' where pos = (select min(pos) from events where type = 'task.started')"
    )
    await hooks.tell()
    assert len(await hooks.deliveries(made)) == 1
    assert hooks.teller.missed_count == 1


async def test_an_endpoint_for_which_too_much_waits_is_disabled_and_what_waited_has_failed(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    witness = await hooks.endpoint(there.url, "alert")
    teller: WebhookFanout = hooks.another_teller(backlog_max=5)
    await hooks.happen(*[STARTED] * 6)
    await hooks.tell(teller)
    row = await hooks.now(made)
    assert (row.enabled, row.disabled_reason) == (0, "backlog_full")
    await hooks.tell(teller)
    async with hooks.delivering():
        rows = await hooks.settled(made, 6)
        [alarm] = await hooks.settled(witness)
    assert {(each.status, each.error) for each in rows} == {
        (DeliveryState.FAILED, "the endpoint hears of nothing any more")
    }
    told = json.loads(alarm.body)
    assert (told["event"], told["alert"], told["webhookId"]) == ("webhook.disabled", "webhook_disabled", made.id)
