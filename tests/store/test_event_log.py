"""The log: numbered in commit order, without gaps, whoever writes; and listeners that hear of it within and after."""

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


def told(kind: str, subject: str = "s", zone_id: str = ZONE) -> NewEvent:
    return NewEvent(kind, zone_id, subject, "tester")


async def emit(engine: Engine, *new: NewEvent) -> None:
    async def operation(tx: Transaction) -> None:
        await tx.read()
        for event in new:
            tx.emit(event)

    await engine.transact(operation, zones={event.zone_id for event in new})


# -- order


class Follower:
    """Reads the log by position while others write it, as a sink does: its whole state is one integer."""

    def __init__(self, keel: RuntimeHarness) -> None:
        self._keel = keel
        self.seen: list[Event] = []

    async def follow(self, until: asyncio.Event) -> None:
        after = 0
        while True:
            ending = until.is_set()
            page = await self._keel.read_log(after, limit=7)
            self.seen += page
            after = page[-1].pos if page else after
            if ending and not page:
                return
            await asyncio.sleep(0)


async def live_and_die(keel: RuntimeHarness, zone_id: str, times: int) -> None:
    for _ in range(times):
        made = await keel.spawn(zone_id)
        await keel.spawn(zone_id, parent_id=made.id)
        await keel.terminate(made)


async def write_and_follow(writers: list[RuntimeHarness], reader: RuntimeHarness) -> list[Event]:
    zones = [f"zone-{number}" for number in range(3)]
    for zone_id in zones:
        await writers[0].put_zone(zone_id)
    follower, done = Follower(reader), asyncio.Event()
    following = asyncio.create_task(follower.follow(done))
    work = [live_and_die(keel, zone_id, 6) for keel in writers for zone_id in zones for _ in range(3)]
    await asyncio.gather(*work)
    done.set()
    await following
    return follower.seen


def assert_whole_and_in_order(seen: list[Event], stored: list[Event]) -> None:
    assert [event.pos for event in seen] == list(range(1, len(seen) + 1)), "no gap, nothing twice, in order"
    assert seen == stored, "nothing missed, and nothing changed after it was read"
    assert len({event.id for event in seen}) == len(seen)
    lives: dict[str, list[str]] = {}
    for event in seen:
        lives.setdefault(event.subject, []).append(event.type)
    sessions = [life for life in lives.values() if life[0].startswith("session")]
    assert all(life == ["session.spawn", "session.terminate"] for life in sessions)


async def test_a_reader_by_position_misses_nothing_and_repeats_nothing_while_lanes_write(engine_url: str) -> None:
    async with open_runtime(engine_url) as keel:
        seen = await write_and_follow([keel], keel)
        assert len(seen) == 3 + 3 * 3 * 6 * 4
        assert_whole_and_in_order(seen, await keel.read_log())


async def test_a_reader_by_position_misses_nothing_and_repeats_nothing_while_replicas_write(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        keels = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(4)]
        seen = await write_and_follow(keels[:3], keels[3])
        assert len(seen) == 3 + 3 * 3 * 3 * 6 * 4
        assert_whole_and_in_order(seen, await keels[3].read_log())
        assert_counts_match_rows(keels[3].database)


async def test_what_is_rolled_back_leaves_no_gap(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        with contextlib.suppress(ZeroDivisionError):
            await fail_after_emitting(runtime)
        await emit(runtime.engine, told("kept", str(number)))
    log = await runtime.read_log()
    assert [event.pos for event in log] == list(range(1, 2 + ROUNDS))
    assert runtime.database.scalar("select pos from log_head") == len(log)


async def fail_after_emitting(keel: RuntimeHarness) -> None:
    async def operation(tx: Transaction) -> None:
        await tx.read()
        event_log.append(tx, [told("lost"), told("lost")], tx.now)
        await tx.read()
        raise ZeroDivisionError("changed my mind")

    await keel.engine.transact(operation, zones=[ZONE])


async def test_events_of_one_batch_keep_the_order_they_were_told_in(runtime: RuntimeHarness) -> None:
    await emit(runtime.engine, *(told("step", str(number)) for number in range(100)))
    assert [event.subject for event in (await runtime.read_log())[1:]] == [str(number) for number in range(100)]


async def test_a_transaction_without_events_takes_no_position(runtime: RuntimeHarness) -> None:
    head = runtime.database.scalar("select pos from log_head")
    await emit(runtime.engine)
    await runtime.put_zone_lane.submit(PutZone(ZONE, None, None, "tester"))
    assert runtime.database.scalar("select pos from log_head") == head


# -- reading


async def test_pages_are_a_zones_own_and_filtered_by_type_and_subject(runtime: RuntimeHarness) -> None:
    kinds, subjects, zones = ("x", "y", "z"), ("one", "two"), (ZONE, "other")
    new = [told(kind, subject, zone) for kind in kinds for subject in subjects for zone in zones]
    await emit(runtime.engine, *new)
    log = await runtime.read_log()
    for types in [(), ("x",), ("x", "z"), ("nothing",)]:
        for subject in (None, *subjects, "nobody"):
            asked = EventFilter(ZONE, after=1, limit=100, types=types, subject=subject)
            wanted = [
                event
                for event in log[1:]
                if event.zone_id == ZONE
                and (not types or event.type in types)
                and (subject is None or event.subject == subject)
            ]
            assert await read_page(runtime, asked) == wanted


async def test_pages_go_on_after_a_position(runtime: RuntimeHarness) -> None:
    await emit(runtime.engine, *(told("step", str(number)) for number in range(10)))
    whole = await read_page(runtime, EventFilter(ZONE))
    paged: list[Event] = []
    while page := await read_page(runtime, EventFilter(ZONE, after=paged[-1].pos if paged else 0, limit=4)):
        assert len(page) <= 4
        paged += page
    assert paged == whole == await runtime.read_log()


async def read_page(keel: RuntimeHarness, wanted: EventFilter) -> list[Event]:
    return await keel.store.read(lambda tx: event_log.read_page(tx, wanted), zones=[wanted.zone_id])


async def test_an_event_is_shown_with_its_data_as_json_and_its_time_in_words(runtime: RuntimeHarness) -> None:
    new = NewEvent("kind", ZONE, "s", "actor", "from", "to", '{"n":1,"text":"ü"}', "00-a-b-01")
    await emit(runtime.engine, new)
    event = (await runtime.read_log())[-1]
    shown = msgspec.json.decode(msgspec.json.encode(event_log.to_view(event)))
    assert shown == {
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
        "at": shown["at"],
    }
    assert shown["at"].endswith("Z")


@pytest.mark.parametrize("commits", [True, False])
async def test_the_witness_of_a_batch_is_found_if_and_only_if_it_was_committed(
    runtime: RuntimeHarness, commits: bool
) -> None:
    witnesses: list[event_log.CommitProof] = []

    async def operation(tx: Transaction) -> None:
        await tx.read()
        witnesses.append(event_log.append(tx, [told("a", "first"), told("b", "second")], tx.now))
        if not commits:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        await runtime.engine.transact(operation, zones=[ZONE])
    [witness] = witnesses
    assert witness.subject == "first"
    found = await runtime.store.read(lambda tx: event_log.is_committed(tx, witness), zones=[ZONE])
    assert found == commits


# -- listeners


async def test_within_listeners_hear_of_events_in_the_same_transaction_until_no_new_ones_arise(engine_url: str) -> None:
    heard: list[list[str]] = []

    async def echo(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        heard.append([event.type for event in fresh])
        for event in fresh:
            if len(event.type) < 3:
                tx.emit(told(event.type + "!"))

    async with open_runtime(engine_url) as keel:
        await emit(Engine(keel.store, transaction_listeners=[echo]), told("a"), told("b"))
        assert heard == [["a", "b"], ["a!", "b!"], ["a!!", "b!!"]]
        assert [event.type for event in await keel.read_log()] == ["a", "b", "a!", "b!", "a!!", "b!!"]


async def test_a_within_listener_that_refuses_takes_the_whole_transaction_back(engine_url: str) -> None:
    async def refuse(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        if any(event.type == "bad" for event in fresh):
            raise Conflict("no", "not with me")

    announced: list[str] = []
    async with open_runtime(engine_url) as keel:
        engine = Engine(keel.store, [refuse], lambda new: announced.extend(event.type for event in new))
        with pytest.raises(Conflict):
            await emit(engine, told("good"), told("bad"))
        assert await keel.read_log() == []
        await emit(engine, told("good"))
        assert announced == ["good"], "only what was committed is announced"


async def test_listeners_that_keep_causing_events_for_each_other_are_stopped(engine_url: str) -> None:
    async def forever(tx: Transaction, fresh: Sequence[NewEvent]) -> None:
        tx.emit(told("again"))

    async with open_runtime(engine_url) as keel:
        with pytest.raises(RuntimeError, match="keep causing events"):
            await emit(Engine(keel.store, transaction_listeners=[forever]), told("first"))
        assert await keel.read_log() == []


async def test_what_was_committed_is_announced_once_and_in_order(engine_url: str) -> None:
    announced: list[str] = []
    rigging = RuntimeOptions(after_commit=lambda new: announced.extend(event.subject for event in new))
    async with open_runtime(engine_url, rigging) as keel:
        await keel.put_zone()
        await asyncio.gather(*(keel.spawn_lane.submit(spawn_command()) for _ in range(20)))
        assert announced == [event.subject for event in await keel.read_log()]


async def test_a_transaction_has_no_time_before_its_first_read(runtime: RuntimeHarness) -> None:
    async def hasty(tx: Transaction) -> int:
        return tx.now

    with pytest.raises(RuntimeError, match="no time before its first read"):
        await runtime.engine.transact(hasty)


async def test_a_page_of_rare_types_looks_no_further_than_a_span_and_says_how_far(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SCAN_POSITIONS", 3)
    for _ in range(8):
        await runtime.spawn()
    head = (await runtime.read_log())[-1].pos
    seen, after, pages = [], 0, 0
    while True:
        wanted = EventFilter(ZONE, after=after, types=("zone.change", "nothing"))
        page = await runtime.engine.read(partial(event_log.read_replay, filters=wanted), zones=[ZONE])
        seen += page.events
        pages += 1
        if page.is_last:
            break
        assert page.covers_to == after + 3
        after = page.covers_to
    assert page.covers_to == head
    assert pages >= head // 3
    whole = [event for event in await runtime.read_log() if event.zone_id == ZONE and event.type == "zone.change"]
    assert seen == whole
    assert EventFilter(ZONE, after=event_log.POSITION_MAX - 1, types=("x",)).scan_end == event_log.POSITION_MAX
