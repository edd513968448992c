"""The event log: positions in commit order without gaps, and listeners inside and after the transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from quarterdeck.core.errors import Conflict
from quarterdeck.domain.zones.model import PutZone
from quarterdeck.engine import event_log
from quarterdeck.engine.event_log import Event, EventFilter, NewEvent
from quarterdeck.engine.transaction import Engine, Transaction
from tests.support.builders import ZONE, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime


def new_event(event_type: str, subject: str = "s", zone_id: str = ZONE) -> NewEvent:
    return NewEvent(event_type, zone_id, subject, "tester")


async def emit(engine: Engine, *new: NewEvent) -> None:
    async def operation(tx: Transaction) -> None:
        await tx.read()
        for event in new:
            tx.emit(event)

    await engine.transact(operation, zones={event.zone_id for event in new})


# -- order


class LogReader:
    """Reads the log by position while others write, as a sink does. Its only state is one integer."""

    def __init__(self, runtime: RuntimeHarness) -> None:
        self._runtime = runtime
        self.seen: list[Event] = []

    async def read_until(self, done: asyncio.Event) -> None:
        after = 0
        while True:
            is_last_round = done.is_set()
            page = await self._runtime.read_log(after, limit=7)
            self.seen += page
            after = page[-1].pos if page else after
            if is_last_round and not page:
                return
            await asyncio.sleep(0)


async def spawn_and_terminate(runtime: RuntimeHarness, zone_id: str, times: int) -> None:
    for _ in range(times):
        session = await runtime.spawn(zone_id)
        await runtime.spawn(zone_id, parent_id=session.id)
        await runtime.terminate(session)


async def write_and_read(writers: list[RuntimeHarness], reader: RuntimeHarness) -> list[Event]:
    zones = [f"zone-{number}" for number in range(3)]
    for zone_id in zones:
        await writers[0].put_zone(zone_id)
    log_reader, done = LogReader(reader), asyncio.Event()
    reading = asyncio.create_task(log_reader.read_until(done))
    work = [spawn_and_terminate(runtime, zone_id, 6) for runtime in writers for zone_id in zones for _ in range(3)]
    await asyncio.gather(*work)
    done.set()
    await reading
    return log_reader.seen


def assert_complete_and_in_order(seen: list[Event], stored: list[Event]) -> None:
    assert [event.pos for event in seen] == list(range(1, len(seen) + 1)), "in order, without gaps or duplicates"
    assert seen == stored, "complete, and unchanged after it was read"
    assert len({event.id for event in seen}) == len(seen)
    types_by_subject: dict[str, list[str]] = {}
    for event in seen:
        types_by_subject.setdefault(event.subject, []).append(event.type)
    sessions = [types for types in types_by_subject.values() if types[0].startswith("session")]
    assert all(types == ["session.spawn", "session.terminate"] for types in sessions)


async def test_reader_by_position_sees_each_event_once_while_lanes_write(engine_url: str) -> None:
    async with open_runtime(engine_url) as runtime:
        seen = await write_and_read([runtime], runtime)
        assert len(seen) == 3 + 3 * 3 * 6 * 4
        assert_complete_and_in_order(seen, await runtime.read_log())


async def test_reader_by_position_sees_each_event_once_while_replicas_write(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(4)]
        seen = await write_and_read(runtimes[:3], runtimes[3])
        assert len(seen) == 3 + 3 * 3 * 3 * 6 * 4
        assert_complete_and_in_order(seen, await runtimes[3].read_log())
        assert_counts_match_rows(runtimes[3].database)


async def test_rolled_back_transaction_leaves_no_gap(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        with contextlib.suppress(ZeroDivisionError):
            await fail_after_emitting(runtime)
        await emit(runtime.engine, new_event("kept", str(number)))
    log = await runtime.read_log()
    assert [event.pos for event in log] == list(range(1, 2 + ROUNDS))
    assert runtime.database.scalar("select pos from log_head") == len(log)


async def fail_after_emitting(runtime: RuntimeHarness) -> None:
    async def operation(tx: Transaction) -> None:
        await tx.read()
        event_log.append(tx, [new_event("lost"), new_event("lost")], tx.now)
        await tx.read()
        raise ZeroDivisionError("rolled back")

    await runtime.engine.transact(operation, zones=[ZONE])


async def test_events_of_one_batch_keep_their_order(runtime: RuntimeHarness) -> None:
    await emit(runtime.engine, *(new_event("step", str(number)) for number in range(100)))
    assert [event.subject for event in (await runtime.read_log())[1:]] == [str(number) for number in range(100)]


async def test_transaction_without_events_takes_no_position(runtime: RuntimeHarness) -> None:
    head = runtime.database.scalar("select pos from log_head")
    await emit(runtime.engine)
    await runtime.put_zone_lane.submit(PutZone(ZONE, None, None, "tester"))
    assert runtime.database.scalar("select pos from log_head") == head


# -- reading


async def test_pages_contain_one_zone_filtered_by_type_and_subject(runtime: RuntimeHarness) -> None:
    event_types, subjects, zones = ("x", "y", "z"), ("one", "two"), (ZONE, "other")
    new = [new_event(event_type, subject, zone) for event_type in event_types for subject in subjects for zone in zones]
    await emit(runtime.engine, *new)
    log = await runtime.read_log()
    for types in [(), ("x",), ("x", "z"), ("nothing",)]:
        for subject in (None, *subjects, "unknown"):
            filters = EventFilter(ZONE, after=1, limit=100, types=types, subject=subject)
            expected = [
                event
                for event in log[1:]
                if event.zone_id == ZONE
                and (not types or event.type in types)
                and (subject is None or event.subject == subject)
            ]
            assert await read_page(runtime, filters) == expected


async def test_pages_continue_after_a_position(runtime: RuntimeHarness) -> None:
    await emit(runtime.engine, *(new_event("step", str(number)) for number in range(10)))
    all_events = await read_page(runtime, EventFilter(ZONE))
    paged: list[Event] = []
    while page := await read_page(runtime, EventFilter(ZONE, after=paged[-1].pos if paged else 0, limit=4)):
        assert len(page) <= 4
        paged += page
    assert paged == all_events == await runtime.read_log()


async def read_page(runtime: RuntimeHarness, filters: EventFilter) -> list[Event]:
    return await runtime.store.read(lambda tx: event_log.read_page(tx, filters), zones=[filters.zone_id])


async def test_event_view_has_json_data_and_an_iso_time(runtime: RuntimeHarness) -> None:
    new = NewEvent("kind", ZONE, "s", "actor", "from", "to", '{"n":1,"text":"ü"}', "00-a-b-01")
    await emit(runtime.engine, new)
    event = (await runtime.read_log())[-1]
    view = msgspec.json.decode(msgspec.json.encode(event_log.to_view(event)))
    assert view == {
        "pos": 2,
        "id": event.id,
        "zone_id": ZONE,
        "type": "kind",
        "subject": "s",
        "actor": "actor",
        "from": "from",
        "to": "to",
        "data": {"n": 1, "text": "ü"},
        "trace": "00-a-b-01",
        "at": view["at"],
    }
    assert view["at"].endswith("Z")


@pytest.mark.parametrize("commits", [True, False])
async def test_commit_proof_is_found_only_if_the_batch_was_committed(runtime: RuntimeHarness, commits: bool) -> None:
    proofs: list[event_log.CommitProof] = []

    async def operation(tx: Transaction) -> None:
        await tx.read()
        proofs.append(event_log.append(tx, [new_event("a", "first"), new_event("b", "second")], tx.now))
        if not commits:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        await runtime.engine.transact(operation, zones=[ZONE])
    [proof] = proofs
    assert proof.subject == "first"
    found = await runtime.store.read(lambda tx: event_log.is_committed(tx, proof), zones=[ZONE])
    assert found == commits


# -- listeners


async def test_transaction_listeners_are_called_until_no_new_events_are_emitted(engine_url: str) -> None:
    received: list[list[str]] = []

    async def echo(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        received.append([event.type for event in fresh])
        for event in fresh:
            if len(event.type) < 3:
                tx.emit(new_event(event.type + "!"))

    async with open_runtime(engine_url) as runtime:
        await emit(Engine(runtime.store, transaction_listeners=[echo]), new_event("a"), new_event("b"))
        assert received == [["a", "b"], ["a!", "b!"], ["a!!", "b!!"]]
        assert [event.type for event in await runtime.read_log()] == ["a", "b", "a!", "b!", "a!!", "b!!"]


async def test_refusal_by_a_transaction_listener_rolls_back_the_transaction(engine_url: str) -> None:
    async def refuse(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        if any(event.type == "bad" for event in fresh):
            raise Conflict("no", "refused by the listener")

    published: list[str] = []
    async with open_runtime(engine_url) as runtime:
        engine = Engine(runtime.store, [refuse], lambda new: published.extend(event.type for event in new))
        with pytest.raises(Conflict):
            await emit(engine, new_event("good"), new_event("bad"))
        assert await runtime.read_log() == []
        await emit(engine, new_event("good"))
        assert published == ["good"], "only committed events are published"


async def test_listeners_that_emit_events_for_ever_are_stopped(engine_url: str) -> None:
    async def emit_again(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        tx.emit(new_event("again"))

    async with open_runtime(engine_url) as runtime:
        with pytest.raises(RuntimeError, match="keep emitting events"):
            await emit(Engine(runtime.store, transaction_listeners=[emit_again]), new_event("first"))
        assert await runtime.read_log() == []


async def test_committed_events_are_published_once_and_in_order(engine_url: str) -> None:
    published: list[str] = []
    options = RuntimeOptions(after_commit=lambda new: published.extend(event.subject for event in new))
    async with open_runtime(engine_url, options) as runtime:
        await runtime.put_zone()
        await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command()) for _ in range(20)))
        assert published == [event.subject for event in await runtime.read_log()]


async def test_transaction_has_no_time_before_its_first_read(runtime: RuntimeHarness) -> None:
    async def read_time(tx: Transaction) -> int:
        return tx.now

    with pytest.raises(RuntimeError, match="not set before the first read"):
        await runtime.engine.transact(read_time)


async def test_page_of_rare_types_scans_a_bounded_span_and_returns_its_end(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SCAN_POSITIONS_MAX", 3)
    for _ in range(8):
        await runtime.spawn()
    head = (await runtime.read_log())[-1].pos
    seen, after, pages = [], 0, 0
    while True:
        filters = EventFilter(ZONE, after=after, types=("zone.change", "nothing"))
        page = await runtime.engine.read(partial(event_log.read_replay, filters=filters), zones=[ZONE])
        seen += page.events
        pages += 1
        if page.is_last:
            break
        assert page.covers_to == after + 3
        after = page.covers_to
    assert page.covers_to == head
    assert pages >= head // 3
    expected = [event for event in await runtime.read_log() if event.zone_id == ZONE and event.type == "zone.change"]
    assert seen == expected
    assert EventFilter(ZONE, after=event_log.POSITION_MAX - 1, types=("x",)).scan_end == event_log.POSITION_MAX
